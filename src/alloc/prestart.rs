//! The steps before a task is started.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::Digest as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Stop;
use super::artifact;
use super::chain::chain;
use super::csi_plugin::CsiPluginHook;
use super::download::{Download, Failure};
use super::error::SetupError;
use super::hook::{Hook, Stack};
use super::setup::Setup;
use super::shared::{leaving, stop_at_least};
use super::state::Rendered;
use super::template::{Basis, Files, Renderer, write_file};
use super::text::{hex, some_of};
use super::values::ValuesFile;
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::spec::{Artifact, EventKind, Pos, Template, shown_source};

/// How long services may take to return after the process that registered them was killed: to be registered again and to pass
/// their checks.
const RETURN: Duration = Duration::from_secs(30);

/// All of these steps, in order.
pub(super) fn steps() -> Stack<Setup> {
    Stack::new(vec![
        Box::new(TaskDirHook),
        Box::new(PayloadHook),
        Box::new(VolumesHook),
        Box::new(CsiPluginHook),
        Box::new(ArtifactsHook),
        Box::new(TemplatesHook),
        Box::new(AdmitHook),
    ])
}

struct TaskDirHook;

#[tonic::async_trait]
impl Hook<Setup> for TaskDirHook {
    fn name(&self) -> &'static str {
        "task_dir"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        setup.shared.offers.check_names(&setup.task, &setup.env)?;
        let name = &setup.task.name;
        setup.shared.event(name, EventKind::TaskSetup, "Building Task Directory", &[]);
        setup.shared.dir.build_task_with(name, setup.task.resources.secrets_mib)
    }
}

/// Writes the payload of a dispatched job to the file that the task names; with Nomad's mode, as it may be a program.
struct PayloadHook;

#[tonic::async_trait]
impl Hook<Setup> for PayloadHook {
    fn name(&self) -> &'static str {
        "dispatch_payload"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let Some(file) = setup.task.dispatch_payload.as_ref().filter(|_| !setup.shared.payload.is_empty()) else {
            return Ok(());
        };
        let (dir, payload, task) =
            (setup.shared.dir.clone(), Arc::clone(&setup.shared.payload), setup.task.name.clone());
        let destination = format!("local/{file}");
        let at = destination.clone();
        let written =
            crate::sys::task::spawn_blocking(move || write_file(&dir, &task, &at, 0o755, (None, None), &payload));
        let written = written.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(|source| SetupError::TemplateFile { pos: setup.task.pos.clone(), destination, source })
    }
}

struct ArtifactsHook;

#[tonic::async_trait]
impl Hook<Setup> for ArtifactsHook {
    fn name(&self) -> &'static str {
        "artifacts"
    }

    /// Fetches what can be fetched, also after one that cannot.
    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let (artifacts, name) = (setup.task.artifacts.clone(), setup.task.name.clone());
        if !artifacts.is_empty() {
            setup.shared.event(&name, EventKind::DownloadingArtifacts, "Client is downloading artifacts", &[]);
        }
        let mut failed = None;
        for (number, artifact) in artifacts.iter().enumerate() {
            if setup.fetched.contains(&number) {
                continue;
            }
            if setup.cancel.load(Ordering::Relaxed) {
                return Err(SetupError::Stopped);
            }
            match fetch(setup, artifact).await {
                Ok(()) => setup.fetched.push(number),
                Err(error) => {
                    if let Some(earlier) = failed.replace(error) {
                        let message = chain(&earlier);
                        let details = [("download_error", message.clone())];
                        setup.shared.event(&name, EventKind::FailedArtifactDownload, &message, &details);
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Fetches one artifact of a task.
async fn fetch(setup: &Setup, artifact: &Artifact) -> Result<(), SetupError> {
    let Setup { shared, task, env, cancel, .. } = setup;
    let source = env.interpolate(&artifact.source);
    let source_path = shown_source(&source);
    let error = |Failure { action, source }: Failure| SetupError::Artifact {
        pos: artifact.pos.clone(),
        source_path: source_path.clone(),
        action,
        source,
    };
    let user = env.interpolate(&task.user);
    let wanted = artifact.chown && !user.is_empty();
    let values = |map: &BTreeMap<String, String>| {
        map.iter().map(|(key, value)| (key.clone(), env.interpolate(value))).into_map()
    };
    let mut download = Download {
        source,
        options: values(&artifact.options),
        headers: values(&artifact.headers),
        insecure: artifact.insecure,
        base_dir: artifact.base_dir.clone(),
        stays_in_base_dir: artifact.stays_in_base_dir,
        dir: shared.dir.clone(),
        task: task.name.clone(),
        destination: env.interpolate(&artifact.destination),
        mode: artifact.mode,
        owner: None,
    };
    let (cancel, shared, name) = (Arc::clone(cancel), Arc::clone(shared), task.name.clone());
    let told = source_path.clone();
    let copied = crate::sys::task::spawn_blocking(move || {
        let owner = wanted.then(|| artifact::owner(&user)).transpose();
        download.owner = owner.map_err(|e| ("cannot be given to the task's user".to_owned(), e))?;
        download.run(&cancel, &mut |far| {
            let details = [("source", told.clone()), ("progress", far.clone())];
            shared.event(&name, EventKind::DownloadingArtifacts, format!("{told}: {far}"), &details);
        })
    });
    let copied = copied.await;
    copied.map_err(|e| error(("copy".to_owned(), io::Error::other(e)).into()))?.map_err(error)
}

struct TemplatesHook;

#[tonic::async_trait]
impl Hook<Setup> for TemplatesHook {
    fn name(&self) -> &'static str {
        "template"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        if setup.task.templates.is_empty() {
            return Ok(());
        }
        let mut told = Vec::new();
        loop {
            // The watch begins before the values are read, so that no change between them is missed.
            let watch = setup.values().watch();
            let values = setup.values().digest();
            let (files, _) = render(setup).await?;
            setup.keep(files, values);
            if setup.files.missing.is_empty() {
                setup.is_first_render = true;
                return Ok(());
            }
            if told != setup.files.missing {
                told.clone_from(&setup.files.missing);
                let fix = setup.values().remedy();
                let message = format!("Missing: {}{fix}", some_of(&told));
                let details = [("missing", told.join(", "))];
                setup.shared.event(&setup.task.name, EventKind::Template, message, &details);
            }
            tokio::select! {
                biased;
                () = stop_at_least(&mut setup.stop, Stop::Gracefully) => return Ok(()),
                () = leaving(&mut setup.leave) => return Err(SetupError::Stopped),
                () = watch.changed(setup.files.asks_for_services) => {}
            }
        }
    }

    /// Existing files stay as they are. A template whose text or values changed meanwhile is detected as changed once the templates
    /// are followed.
    async fn restore(&self, setup: &mut Setup) -> Result<(), SetupError> {
        if setup.task.templates.is_empty() {
            return Ok(());
        }
        let (known, values) = (std::mem::take(&mut setup.rendered), setup.values().digest());
        let record = known.clone();
        let (mut files, before) = rendered(setup, move |renderer, templates, _, cancel| {
            let is_known = |number: &usize, bytes: &[u8]| record.files.get(number) == Some(&digest(bytes));
            let bases = record.asked.iter().map(|(number, digest)| (*number, Basis::known(digest))).into_map();
            let before = Files { rendered: renderer.there(templates, &is_known), bases, ..Files::default() };
            Ok((renderer.render(templates, &before, cancel)?, before))
        })
        .await?;
        // Records of earlier versions have only a digest of all values.
        let same_values = known.values == values && !files.asks_for_services && files.missing.is_empty();
        files.keep_known(before, |number, bytes, basis| {
            let same = known.asked.get(number).map_or(same_values, |digest| *digest == basis.digest);
            // A file that the task itself has changed is not written again either.
            same || known.files.get(number) == Some(&digest(bytes))
        });
        setup.rendered = known;
        if files.asks_for_services {
            setup.services_return_by = Some(Instant::now() + RETURN);
        }
        if !files.missing.is_empty() {
            let missing = std::mem::take(&mut files.missing).join(", ");
            setup.files = Arc::new(files);
            return Err(SetupError::Values(format!("they have no {missing}")));
        }
        let known = std::mem::take(&mut setup.rendered);
        setup.keep(files, values);
        setup.rendered = known;
        Ok(())
    }
}

impl Setup {
    /// The values that its templates may read.
    pub(super) fn values(&self) -> ValuesFile {
        self.shared.values.of_task(&self.task.name)
    }

    /// Keeps the rendered templates, and their variables unless something is missing.
    pub(super) fn keep(&mut self, files: Files, values: String) {
        let digests = files.rendered.iter().map(|(number, bytes)| (*number, digest(bytes)));
        let asked = files.bases.iter().map(|(number, basis)| (*number, basis.digest.clone()));
        self.rendered = Rendered { values, files: digests.into_map(), asked: asked.into_map() };
        if files.missing.is_empty() {
            self.env = self.bare_env.clone();
            self.env.extend(files.env.iter().cloned());
        }
        self.files = Arc::new(files);
    }
}

fn digest(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// Finds the task's volume mounts, before anything is made for it.
struct VolumesHook;

#[tonic::async_trait]
impl Hook<Setup> for VolumesHook {
    fn name(&self) -> &'static str {
        "volumes"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let Setup { shared, task, env, driver_mounts, cancel, .. } = &*setup;
        setup.mounts = shared.volumes.find(task, env, *driver_mounts, cancel).await?;
        Ok(())
    }

    async fn restore(&self, setup: &mut Setup) -> Result<(), SetupError> {
        self.run(setup).await
    }
}

/// Renders the templates and writes files that differ from before. Returns the files, and the indexes of the changed ones.
pub(super) async fn render(setup: &Setup) -> Result<(Files, Vec<usize>), SetupError> {
    rendered(setup, |renderer, templates, before, cancel| {
        let files = renderer.render(templates, before, cancel)?;
        let written = renderer.write(templates, &files, before)?;
        Ok((files, written))
    })
    .await
}

/// Renders the templates without writing them.
pub(super) async fn only_render(setup: &Setup) -> Result<Files, SetupError> {
    rendered(setup, Renderer::render).await
}

/// Calls `work` with what the templates are rendered with, the templates, and the files of the last time.
async fn rendered<T: Send + 'static>(
    setup: &Setup,
    work: impl FnOnce(&Renderer, &[Template], &Files, &AtomicBool) -> Result<T, SetupError> + Send + 'static,
) -> Result<T, SetupError> {
    let broken = |pos: &Pos, source: io::Error| {
        let (pos, destination) = (pos.clone(), String::new());
        SetupError::TemplateFile { pos, destination, source }
    };
    let pos = setup.task.pos.clone();
    // The memory for rendering is limited per template, and so is the number of tasks that render at once.
    let turn = RENDERING.acquire().await.map_err(|e| broken(&pos, io::Error::other(e)))?;
    let (templates, cancel, before) =
        (setup.task.templates.clone(), Arc::clone(&setup.cancel), Arc::clone(&setup.files));
    let (env, dir, task) = (setup.bare_env.clone(), setup.shared.dir.clone(), setup.task.name.clone());
    let file = setup.values();
    let rendering = crate::sys::task::spawn_blocking(move || {
        let values = file.read().map_err(SetupError::Values)?;
        let renderer = Renderer { env, dir, task, values, asked_for_services: AtomicBool::new(false) };
        work(&renderer, &templates, &before, &cancel)
    });
    let done = rendering.await.map_err(|e| broken(&pos, io::Error::other(e)))?;
    drop(turn);
    done
}

/// Lets the task's user reach its files; the last step, because no process of that user needs it earlier.
struct AdmitHook;

#[tonic::async_trait]
impl Hook<Setup> for AdmitHook {
    fn name(&self) -> &'static str {
        "admit"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        setup.enters.map_or(Ok(()), |user| setup.shared.dir.admit(user))
    }
}

/// How many tasks render their templates at the same time.
static RENDERING: Semaphore = Semaphore::const_new(2);
