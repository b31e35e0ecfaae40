//! Tokens for the agent's API. The first one is made when the agent first listens on TCP, and kept in a file that only its user can
//! read; the running agent makes, lists and revokes the others.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::ask::{ask, socket};
use super::{TokenCommand, print};
use crate::agent::model::{Nanos, Role, Secret, Token};
use crate::agent::state::State;
use crate::spec::json::json;
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

/// `agentbin token`.
pub(super) fn run(command: &TokenCommand) -> anyhow::Result<i32> {
    const PATH: &str = "/v1/agentbin/tokens";
    let parse = |text: &str| serde_json::from_str::<Value>(text).context("cannot read the agent's answer");
    let text = |token: &Value, key: &str| token[key].as_str().unwrap_or("-").to_owned();
    match command {
        TokenCommand::Create { role, name, ttl, at } => {
            let asked =
                json!({ "Role": role.as_str(), "Name": name, "ExpirationTTL": ttl.as_deref().unwrap_or_default() });
            let token = parse(&ask(&socket(at)?, "PUT", PATH, &asked.to_string())?)?;
            // The secret alone on standard output, for a script; it is told only once.
            super::complain(&format!("the accessor of this token, to revoke it, is {}", text(&token, "AccessorID")));
            print(format!("{}\n", text(&token, "SecretID")).as_bytes())
        }
        TokenCommand::List { at } => {
            let tokens = parse(&ask(&socket(at)?, "GET", PATH, "")?)?;
            let mut lines = format!("{:36}  {:6}  {:20}  NAME\n", "ACCESSOR", "ROLE", "EXPIRES");
            for token in tokens.as_array().into_iter().flatten() {
                let [accessor, role, expires, name] =
                    ["AccessorID", "Role", "ExpirationTime", "Name"].map(|key| text(token, key));
                let name = crate::spec::escaped_lines(&name);
                // Cannot fail: it is a text in memory.
                let _ = writeln!(lines, "{accessor:36}  {role:6}  {expires:20}  {name}");
            }
            print(lines.as_bytes())
        }
        TokenCommand::Revoke { accessor, at } => {
            let is_id = accessor.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
            anyhow::ensure!(is_id, "{accessor:?} is not an accessor; agentbin token list prints them");
            ask(&socket(at)?, "DELETE", &format!("/v1/agentbin/token/{accessor}"), "")?;
            Ok(0)
        }
    }
}
