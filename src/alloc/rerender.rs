//! Templates that change while their task runs.

use std::sync::Arc;

use tokio::time::Instant;

use super::chain::chain;
use super::prestart::{only_render, render};
use super::setup::Setup;
use super::shared::random;
use super::task::TaskRunner;
use crate::spec::{ChangeMode, ChangeScript, EventKind, Template};

/// What happens to a task after its templates have changed.
enum Next {
    Nothing,
    Restart,
    Fail,
}

impl TaskRunner {
    /// Renders the templates again when a value changes, and performs their `change_mode`. Returns when the task has to end:
    /// `false`
    /// to be restarted, `true` because a script failed whose failure counts. Cancel safe: once dropped, nothing more is done.
    pub(super) async fn follow_templates(&self, id: &str, setup: &mut Setup) -> bool {
        if setup.is_first_render {
            for template in &setup.task.templates {
                if let ChangeMode::Script(script) = &template.change_mode
                    && script.run_on_first_render
                    && self.fails_with(script, id, setup).await
                {
                    return true;
                }
            }
            setup.is_first_render = false;
        }
        let changes = |t: &Template| !t.once;
        let may_change = self.shared.values.is_given() || setup.files.asks_for_services;
        if !may_change || !setup.task.templates.iter().any(changes) {
            return std::future::pending().await;
        }
        self.await_services(setup).await;
        loop {
            let watch = setup.values().watch();
            let values = setup.values().digest();
            let (files, written) = match render(setup).await {
                Ok(done) => done,
                Err(error) => {
                    // The task keeps its files until the values can be rendered again.
                    let message = format!("Template failed: {}", chain(&error));
                    self.event(EventKind::Template, &message, &[("template_error", message.clone())]);
                    watch.changed(setup.files.asks_for_services).await;
                    continue;
                }
            };
            if files.missing.is_empty() {
                setup.keep(files, values);
                let changed: Vec<Template> = written.iter().map(|n| setup.task.templates[*n].clone()).collect();
                match self.act_on(id, &changed, setup).await {
                    Next::Nothing => self.rendered(setup),
                    Next::Restart => return false,
                    Next::Fail => return true,
                }
            } else {
                // Existing files stay.
                let mut kept = files;
                for (number, bytes) in &setup.files.rendered {
                    kept.rendered.entry(*number).or_insert_with(|| bytes.clone());
                }
                for (number, basis) in &setup.files.bases {
                    kept.bases.entry(*number).or_insert_with(|| basis.clone());
                }
                setup.files = Arc::new(kept);
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

    /// Performs the `change_mode` of the changed templates: a single restart replaces all other actions.
    async fn act_on(&self, id: &str, changed: &[Template], setup: &Setup) -> Next {
        let acts = |t: &&Template| t.change_mode != ChangeMode::Noop;
        let Some(splay) = changed.iter().filter(acts).map(|t| t.splay).max() else { return Next::Nothing };
        if !splay.is_zero() {
            tokio::time::sleep(splay.mul_f64(random())).await;
        }
        if changed.iter().any(|t| t.change_mode == ChangeMode::Restart) {
            return Next::Restart;
        }
        for template in changed {
            match &template.change_mode {
                ChangeMode::Signal(signal) => {
                    let message = "Template re-rendered";
                    self.event(EventKind::Signaling, message, &[("task_signal", signal.to_string())]);
                    if let Err(error) = self.driver.signal_task(id, *signal).await {
                        let message = format!("Template could not signal the task: {}", chain(&error));
                        self.event(EventKind::Template, &message, &[("template_error", message.clone())]);
                    }
                }
                ChangeMode::Script(script) => {
                    if self.fails_with(script, id, setup).await {
                        return Next::Fail;
                    }
                }
                ChangeMode::Noop | ChangeMode::Restart => {}
            }
        }
        Next::Nothing
    }

    /// Runs a script inside the task; `true` if its failure ends the task.
    async fn fails_with(&self, script: &ChangeScript, id: &str, setup: &Setup) -> bool {
        let words = std::iter::once(&script.command).chain(&script.args);
        let command: Vec<String> = words.map(|word| setup.env.interpolate(word)).collect();
        let shown = command.join(" ");
        let failed = match self.driver.exec_task(id, &command, script.timeout).await {
            Ok(done) if done.exit.exit_code == 0 && done.exit.signal == 0 => None,
            Ok(done) => Some(format!("exit code {}", done.exit.exit_code)),
            Err(error) => Some(chain(&error)),
        };
        let message = match &failed {
            None => format!("Template successfully ran script: {shown}"),
            Some(why) => format!("Template failed to run script {shown}: {why}"),
        };
        self.event(EventKind::Template, &message, &[("template_script", shown)]);
        failed.is_some() && script.fail_on_error
    }
}
