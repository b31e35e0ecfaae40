//! The variables of the state, as templates ask for them.

use serde_json::{Map, Value as Json};
use tokio::sync::watch;

use super::state::{State, Table};
use crate::alloc::{Variables, chain};

impl Variables for State {
    fn read(&self, namespace: &str, paths: &[String]) -> Result<Map<String, Json>, String> {
        let failed = |error| format!("cannot read the variables: {}", chain(&error));
        let view = State::read(self).map_err(failed)?;
        let mut found = Map::new();
        for path in paths {
            if let Some(variable) = view.variable(namespace, path).map_err(failed)? {
                let text = |secret: &super::model::Secret| Json::String(secret.expose().to_owned());
                let items = variable.items.iter().map(|(name, secret)| (name.clone(), text(secret))).collect();
                found.insert(path.clone(), Json::Object(items));
            }
        }
        Ok(found)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        State::changes(self, Table::Variables)
    }
}
