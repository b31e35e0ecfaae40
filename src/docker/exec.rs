//! Calls of the engine that run a command in a container.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ask::{self, Ask};
use super::call::{self, escaped};
use super::endpoint::Connector;
use super::error::chain;
use super::{Engine, EngineError};

use crate::spec::json::json;

/// A command to be run inside a container.
#[derive(Debug, Clone, Default)]
pub struct ExecCommand {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// Whether it gets a stdin.
    pub stdin: bool,
}

/// The state of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecState {
    /// Whether it is still running.
    pub running: bool,
    /// Its exit status, once it has ended.
    pub exit_code: i32,
    /// Its pid on the host; 0 when there is none.
    pub pid: i32,
}

/// The two directions of a command's streams: raw bytes with a terminal, else frames ([`super::logs::Frames`]). Shutting it
/// down for writing closes the command's stdin.
pub struct Exec(TokioIo<hyper::upgrade::Upgraded>);

impl AsyncRead for Exec {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Exec {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Engine {
    /// Prepares a command inside a running container and returns the id of its run.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec_create(&self, container: &str, command: &ExecCommand) -> Result<String, EngineError> {
        const WHAT: &str = "prepare a command in the container";
        let config = json!({
            "AttachStdin": command.stdin,
            "AttachStdout": true,
            "AttachStderr": true,
            "Tty": command.tty,
            "Cmd": command.command,
        });
        let ask = Ask::post(format!("/containers/{}/exec", escaped(container))).json(&config);
        call::id(WHAT, &self.ask(WHAT, self.deadlines.change, ask).await?)
    }

    /// Starts it, with its streams. `tty` has to be what it was prepared with.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec_start(&self, id: &str, tty: bool) -> Result<Exec, EngineError> {
        const WHAT: &str = "start a command in the container";
        let starting = async {
            let uri = self.connector.versioned(&format!("/exec/{id}/start")).await?;
            let request = Request::post(uri)
                .header(header::HOST, "docker")
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONNECTION, "Upgrade")
                .header(header::UPGRADE, "tcp")
                .body(ask::bytes(format!("{{\"Detach\":false,\"Tty\":{tty}}}")))
                .map_err(|e| EngineError::Endpoint(e.to_string()))?;
            let response = Connector::checked(WHAT, self.connector.send(request).await?).await?;
            let broken = |e: hyper::Error| EngineError::Broken { what: WHAT, problem: chain(&e) };
            Ok(Exec(TokioIo::new(hyper::upgrade::on(response).await.map_err(broken)?)))
        };
        let after = self.deadlines.change;
        tokio::time::timeout(after, starting).await.unwrap_or(Err(EngineError::Timeout { what: WHAT, after }))
    }

    /// Sets the size of its terminal.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec_resize(&self, id: &str, height: u16, width: u16) -> Result<(), EngineError> {
        let ask = Ask::post(format!("/exec/{}/resize", escaped(id)));
        let ask = ask.with("h", &height.to_string()).with("w", &width.to_string());
        self.ask("set the size of the terminal", self.deadlines.ask, ask).await.map(drop)
    }

    /// The state of the command.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec_inspect(&self, id: &str) -> Result<ExecState, EngineError> {
        let ask = Ask::get(format!("/exec/{}/json", escaped(id)));
        let state = self.ask("inspect a command in the container", self.deadlines.ask, ask).await?;
        Ok(ExecState {
            running: call::flag(&state, "/Running"),
            exit_code: call::number(&state, "/ExitCode").unwrap_or(-1),
            pid: call::number(&state, "/Pid").unwrap_or(0),
        })
    }
}
