//! Records with which a running plugin can be reattached: our format, and Nomad's.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::HostError;
use crate::spec::ProcessId;
use crate::spec::json;
use crate::sys;

/// Everything needed to reattach to a plugin after this process has been replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The plugin's process.
    pub process: ProcessId,
    /// Its socket.
    pub socket: PathBuf,
}

/// The same in the format that Go hosts and drivers write into their state: keys are Go's field names, and the process is a bare
/// pid, which may belong to another process by now.
///
/// [`ReattachConfig::adopt`] checks that it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReattachConfig {
    /// `grpc`, or `netrpc` when it is empty.
    pub protocol: String,
    /// `unix` or `tcp`.
    pub network: String,
    /// Path of the socket, or address and port.
    pub addr: String,
    /// Process id in the writer's pid namespace.
    pub pid: i32,
}

impl From<&Reattach> for ReattachConfig {
    fn from(reattach: &Reattach) -> ReattachConfig {
        ReattachConfig {
            protocol: "grpc".to_owned(),
            network: "unix".to_owned(),
            addr: reattach.socket.to_string_lossy().into_owned(),
            pid: reattach.process.pid,
        }
    }
}

impl ReattachConfig {
    /// Parses the JSON form, which Nomad keeps for logmon.
    ///
    /// # Errors
    /// The mistake in the text.
    pub fn parse(json: &str) -> Result<ReattachConfig, serde_json::Error> {
        json::from_str(json)
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        let ReattachConfig { protocol, network, addr, pid } = self;
        crate::spec::json::json!({ "Protocol": protocol, "Network": network, "Addr": addr, "Pid": pid }).to_string()
    }

    /// Turns a record of another program into one of ours, after checking that it is correct: the listener on the socket is the
    /// recorded process. Sends no signal and no data.
    ///
    /// The connection that this takes is closed at once, as Go hosts also do. The kernel reports the listener's pid
    /// (`SO_PEERCRED`), so a process that reuses the recorded pid is never mistaken for the plugin.
    ///
    /// # Errors
    /// [`HostError::Gone`] when the process has ended or nothing listens, [`HostError::Stranger`] when another process listens,
    /// [`HostError::NotReattachable`] for anything but gRPC on a unix socket, [`HostError::Connect`].
    pub async fn adopt(&self) -> Result<Reattach, HostError> {
        if self.protocol != "grpc" {
            return Err(HostError::NotReattachable("its record names a protocol other than grpc"));
        }
        if self.network != "unix" {
            return Err(HostError::NotReattachable(
                "it does not listen on a unix socket, so its process cannot be told",
            ));
        }
        let pid = self.pid;
        let gone = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => HostError::Gone(pid),
            _ => HostError::Watch { pid, source },
        };
        let process = sys::time::process_id(pid).map_err(gone)?;
        let socket = PathBuf::from(&self.addr);
        let connection = UnixStream::connect(&socket).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => HostError::Gone(pid),
            _ => HostError::Connect { address: self.addr.clone(), source },
        })?;
        let listener =
            connection.peer_cred().map_err(|source| HostError::Connect { address: self.addr.clone(), source })?;
        let found = listener.pid().unwrap_or_default();
        if found != pid {
            return Err(HostError::Stranger { socket, recorded: pid, found });
        }
        // The process existed before the query and still exists after it, so the answer was about this process.
        if !sys::time::is_alive(&process).map_err(gone)? {
            return Err(HostError::Gone(pid));
        }
        Ok(Reattach { process, socket })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use super::*;

    fn config(addr: &std::path::Path, pid: i32) -> ReattachConfig {
        let addr = addr.to_str().unwrap().to_owned();
        ReattachConfig { protocol: "grpc".to_owned(), network: "unix".to_owned(), addr, pid }
    }

    /// A3: the text that Nomad keeps for logmon, parsed and written.
    #[test]
    fn the_json_is_nomads() {
        let text = r#"{"Protocol":"grpc","Network":"unix","Addr":"/tmp/plugin123","Pid":4242}"#;
        let read = ReattachConfig::parse(text).unwrap();
        assert_eq!(read, config("/tmp/plugin123".as_ref(), 4242));
        assert_eq!(read.to_json(), text);
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(ReattachConfig::parse("{}").unwrap(), ReattachConfig::default());
        assert!(ReattachConfig::parse("null").is_err());
    }

    /// A3: the listener on the socket decides, not the recorded pid.
    #[tokio::test]
    async fn only_the_process_that_listens_is_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("plugin");
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(config(&socket, own).adopt().await, Err(HostError::Gone(_))));
        let listener = UnixListener::bind(&socket).unwrap();
        let adopted = config(&socket, own).adopt().await.unwrap();
        assert_eq!(adopted, Reattach { process: sys::time::process_id(own).unwrap(), socket: socket.clone() });
        assert_eq!(ReattachConfig::from(&adopted), config(&socket, own));

        let mut other = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let stolen = config(&socket, i32::try_from(other.id()).unwrap());
        let refused = stolen.adopt().await.unwrap_err();
        assert!(matches!(&refused, HostError::Stranger { found, .. } if *found == own), "{refused}");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(matches!(stolen.adopt().await, Err(HostError::Gone(_))));
        assert!(matches!(config(&socket, 0).adopt().await, Err(HostError::Gone(0))));
        assert!(matches!(config(&socket, -1).adopt().await, Err(HostError::Gone(-1))));

        let other = ReattachConfig { network: "tcp".to_owned(), ..config(&socket, own) };
        assert!(matches!(other.adopt().await, Err(HostError::NotReattachable(_))));
        let other = ReattachConfig { protocol: String::new(), ..config(&socket, own) };
        assert!(matches!(other.adopt().await, Err(HostError::NotReattachable(_))));
        drop(listener);
        assert!(matches!(config(&socket, own).adopt().await, Err(HostError::Gone(_))));
    }
}
