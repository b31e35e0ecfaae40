//! Templates that change while their task runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::chain::chain;
use super::prestart::{only_render, render};
use super::setup::Setup;
use super::shared::random;
use super::task::TaskRunner;
use super::template::Files;
use crate::driver::{DriverError, ExecTaskResult};
use crate::spec::{ChangeMode, ChangeScript, EventKind, Signal, Template};

/// Nomad's reason to kill a task whose script has failed.
const SCRIPT_FAILED: &str = "Template script failed, task is being killed";

/// What happens to a task after its templates have changed.
enum Next {
    Nothing,
    Restart,
    /// It fails, for this reason.
    Fail(String),
}

impl TaskRunner {
    /// Renders the templates again when a value changes, and performs their `change_mode`. Returns when the task has to end: `None`
    /// to be restarted, a reason to fail for good. Cancel safe: once dropped, nothing more is done, and the next call goes on with
    /// what was not done yet.
    pub(super) async fn follow_templates(&self, id: &str, setup: &mut Setup) -> Option<String> {
        if setup.is_first_render {
            for template in &setup.task.templates {
                if let ChangeMode::Script(script) = &template.change_mode
                    && script.run_on_first_render
                    && self.fails_with(script, id, setup).await
                {
                    return Some(SCRIPT_FAILED.to_owned());
                }
            }
            setup.is_first_render = false;
        }
        let changes = |t: &Template| !t.once;
        let may_change = self.shared.values.is_given() || setup.files.asks_for_services;
        if setup.pending.is_empty() && (!may_change || !setup.task.templates.iter().any(changes)) {
            return std::future::pending().await;
        }
        self.await_services(setup).await;
        loop {
            let watch = setup.values().watch();
            let values = setup.values().digest();
            match render(setup).await {
                Ok((files, written)) => {
                    let is_new = |number: &usize| !setup.pending.contains(number);
                    let new: Vec<usize> = written.into_iter().filter(is_new).collect();
                    setup.pending.extend(new);
                    if files.missing.is_empty() {
                        setup.keep(files, values);
                    } else {
                        setup.keep_existing(files);
                    }
                }
                Err(error) => {
                    // The task keeps its files until the values can be rendered again.
                    let message = format!("Template failed: {}", chain(&error));
                    self.event(EventKind::Template, &message, &[("template_error", message.clone())]);
                }
            }
            match self.act_on(id, setup).await {
                Next::Nothing => self.rendered(setup),
                Next::Restart => return None,
                Next::Fail(reason) => return Some(reason),
            }
            watch.changed(setup.files.asks_for_services).await;
        }
    }

    /// Waits until the services are the same as when the templates were rendered last, or until the deadline. Services that
    /// disappear because the process that registered them was killed are no reason to act on a task that outlived that process.
    async fn await_services(&self, setup: &mut Setup) {
        while let Some(deadline) = setup.services_return_by.filter(|deadline| Instant::now() < *deadline) {
            let watch = setup.values().watch();
            if only_render(setup).await.is_ok_and(|files| files.rendered == setup.files.rendered) {
                break;
            }
            tokio::select! {
                () = watch.changed(true) => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
        setup.services_return_by = None;
    }

    /// Records the rendered templates, once their changes have been handled completely.
    fn rendered(&self, setup: &Setup) {
        if self.control().state().rendered != setup.rendered {
            self.control().update(|state| state.rendered.clone_from(&setup.rendered));
            self.shared.save();
        }
    }

    /// Performs the `change_mode` of the pending templates: a single restart replaces all other actions, signals come before
    /// scripts, and each signal is sent once.
    async fn act_on(&self, id: &str, setup: &mut Setup) -> Next {
        let of = |number: &usize| {
            let Template { change_mode, splay, .. } = setup.task.templates.get(*number)?;
            (*change_mode != ChangeMode::Noop).then(|| (*number, change_mode.clone(), *splay))
        };
        let changed: Vec<(usize, ChangeMode, Duration)> = setup.pending.iter().filter_map(of).collect();
        let splay = changed.iter().map(|(_, _, splay)| *splay).max().unwrap_or_default();
        if !splay.is_zero() {
            tokio::time::sleep(splay.mul_f64(random())).await;
        }
        if changed.iter().any(|(_, mode, _)| *mode == ChangeMode::Restart) {
            // The next start has nothing pending.
            return Next::Restart;
        }
        let mut sent: Vec<Signal> = Vec::new();
        for (number, mode, _) in &changed {
            let ChangeMode::Signal(signal) = mode else { continue };
            if !sent.contains(signal) {
                sent.push(*signal);
                let message = "Template re-rendered";
                self.event(EventKind::Signaling, message, &[("task_signal", signal.to_string())]);
                match self.driver.signal_task(id, *signal).await {
                    // It has ended, which is heard as its end.
                    Ok(()) | Err(DriverError::TaskNotFound) => {}
                    Err(error) => {
                        return Next::Fail(format!("Template failed to send signals [{signal}]: {}", chain(&error)));
                    }
                }
            }
            setup.pending.retain(|pending| pending != number);
        }
        for (number, mode, _) in &changed {
            let ChangeMode::Script(script) = mode else { continue };
            if self.fails_with(script, id, setup).await {
                return Next::Fail(SCRIPT_FAILED.to_owned());
            }
            setup.pending.retain(|pending| pending != number);
        }
        // The others ask for nothing.
        setup.pending.clear();
        Next::Nothing
    }

    /// Runs a script inside the task; `true` if its failure ends the task.
    async fn fails_with(&self, script: &ChangeScript, id: &str, setup: &Setup) -> bool {
        let words = std::iter::once(&script.command).chain(&script.args);
        let command: Vec<String> = words.map(|word| setup.env.interpolate(word)).collect();
        let (program, arguments) = (&command[0], command[1..].join(" "));
        let when = if setup.is_first_render { "at the first rendering" } else { "on change" };
        let (kind, message) = match self.driver.exec_task(id, &command, script.timeout).await {
            Ok(ExecTaskResult { exit, .. }) if exit.exit_code == 0 && exit.signal == 0 => (
                EventKind::HookMessage,
                format!("Template successfully ran script {program} with arguments: [{arguments}]. Exit code: 0"),
            ),
            Ok(ExecTaskResult { exit, .. }) => {
                let how = if exit.signal == 0 {
                    format!("exited with code: {}", exit.exit_code)
                } else {
                    format!("was killed by signal: {}", exit.signal)
                };
                let message = format!("Template ran script {program} with arguments [{arguments}] {when} but it {how}");
                (EventKind::HookFailed, message)
            }
            Err(error) => (
                EventKind::HookFailed,
                format!(
                    "Template failed to run script {program} with arguments [{arguments}] {when}: {}",
                    chain(&error)
                ),
            ),
        };
        self.event(kind, message, &[("template_script", command.join(" "))]);
        kind == EventKind::HookFailed && script.fail_on_error
    }
}

impl Setup {
    /// Keeps the templates that could be rendered, and of the others what was there before.
    fn keep_existing(&mut self, mut files: Files) {
        for (number, bytes) in &self.files.rendered {
            files.rendered.entry(*number).or_insert_with(|| bytes.clone());
        }
        for (number, basis) in &self.files.bases {
            files.bases.entry(*number).or_insert_with(|| basis.clone());
        }
        self.files = Arc::new(files);
    }
}
