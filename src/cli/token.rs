//! The token for the API over TCP: made when the agent first listens there, and kept in a file that only its user can read.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::agent::model::{Nanos, Role, Secret, Token};
use crate::agent::state::State;
use crate::sys::random;

/// The file, in the data directory.
const FILE: &str = "token";

/// Makes the first token, if there is none.
pub(super) async fn first(state: &State, data_dir: &Path) -> anyhow::Result<()> {
    let path = data_dir.join(FILE);
    if path.exists() {
        return Ok(());
    }
    let secret = random::uuid().hyphenated().to_string();
    let token = Token {
        accessor_id: random::uuid().hyphenated().to_string(),
        name: "first token of this agent".to_owned(),
        role: Role::Manage,
        create_time: Nanos::of(std::time::SystemTime::now()),
        expiration_time: Nanos(0),
        create_index: 0,
        modify_index: 0,
    };
    let kept = secret.clone();
    state.change(move |change| change.put_token(token, Some(&Secret::new(kept)))).await?;
    let context = || format!("cannot write the token to {}", path.display());
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).with_context(context)?;
    writeln!(file, "{secret}").and_then(|()| file.sync_all()).with_context(context)?;
    tracing::info!("the token for the API over TCP is in {}", path.display());
    Ok(())
}
