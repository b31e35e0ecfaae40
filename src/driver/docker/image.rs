//! Images: fetched once however many tasks wait for them, and removed some time after the last task that used them. Never knows
//! containers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::Config;
use super::task::Auth;
use crate::docker::{Credentials, Engine, EngineError, Progress};
use crate::driver::DriverError;
use crate::driver::failed;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::sys::children;
use crate::sys::lock::lock;

/// How often waiting tasks get a report on the progress of a pull.
const REPORT: Duration = Duration::from_mins(2);
/// How often the removal of an image is tried, and the pause between tries.
const REMOVALS: u32 = 3;
const REMOVAL_PAUSE: Duration = Duration::from_secs(3);
/// Timeout of a credential helper.
const HELPER: Duration = Duration::from_secs(30);
/// The name of Docker Hub in credentials.
const HUB: &str = "https://index.docker.io/v1/";
/// Message of a credential helper that has no credentials for a registry.
const NONE_FOUND: &str = "credentials not found in native keychain";

/// The parts of an image's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// Includes the registry, if the name has one.
    pub(super) repository: String,
    /// A tag, or a digest.
    pub(super) tag: String,
}

impl Reference {
    pub(super) fn parse(image: &str) -> Result<Reference, DriverError> {
        let name = image.strip_prefix("https://").unwrap_or(image);
        let (repository, tag) = if let Some((repository, digest)) = name.split_once('@') {
            // A tag next to a digest is ignored.
            let slash = repository.rfind('/').map_or(0, |at| at + 1);
            (repository[slash..].find(':').map_or(repository, |at| &repository[..slash + at]), digest)
        } else {
            // A colon before a slash belongs to the registry's port.
            name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((name, "latest"))
        };
        let is_tag = !tag.is_empty() && tag.chars().all(|c| c.is_ascii_alphanumeric() || "_.-+:".contains(c));
        if !is_tag || !is_repository(repository) {
            let form = "[REGISTRY/]NAME[:TAG] or [REGISTRY/]NAME@DIGEST, the NAME in lower case";
            return Err(failed(format!("the image name {image:?} is not valid; write {form}"), false));
        }
        Ok(Reference { repository: repository.to_owned(), tag: tag.to_owned() })
    }

    pub(super) fn name(&self) -> String {
        let sign = if self.tag.starts_with("sha256:") { '@' } else { ':' };
        format!("{}{sign}{}", self.repository, self.tag)
    }

    /// The registry by the name that credentials use for it.
    fn registry(&self) -> &str {
        match self.repository.split_once('/') {
            Some(("docker.io" | "index.docker.io", _)) => HUB,
            Some((host, _)) if is_registry(host) => host,
            _ => HUB,
        }
    }
}

/// Whether this can be the name of an image without its tag. The engine checks it again.
fn is_repository(text: &str) -> bool {
    let (host, path) = text.split_once('/').filter(|(host, _)| is_registry(host)).unwrap_or(("", text));
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_edge) && part.ends_with(is_edge) && part.chars().all(|c| is_edge(c) || "._-".contains(c))
    };
    host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c)) && path.split('/').all(is_part)
}

/// Whether an engine takes the first part of an image's name for a registry, so that this registry's credentials, and no
/// others, are sent: user names on Docker Hub have no capital letters.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(char::is_uppercase)
}

type Outcome = Result<String, DriverFailure>;

/// A [`DriverError::Failed`] that can be cloned for several waiting tasks.
#[derive(Debug, Clone)]
struct DriverFailure {
    message: String,
    recoverable: bool,
}

impl DriverFailure {
    fn into_error(self) -> DriverError {
        failed(self.message, self.recoverable)
    }
}

/// What a task that waits for an image is told.
pub(super) enum Progressing {
    /// The image is pulled, by this task or by another one.
    Begins,
    /// How far the pull is.
    Is(String),
}

/// Callback for a task that waits for an image.
pub(super) type Report<'a> = &'a (dyn Fn(Progressing) + Send + Sync);

#[derive(Debug, Default)]
struct State {
    /// Running pulls, by image name.
    pulls: HashMap<String, Arc<Pull>>,
    /// The users of an image, by its id.
    users: HashMap<String, BTreeSet<String>>,
    /// Scheduled removals.
    removals: HashMap<String, tokio::task::AbortHandle>,
}

#[derive(Debug)]
struct Pull {
    outcome: watch::Receiver<Option<Outcome>>,
    said: watch::Receiver<String>,
}

/// Makes one pull per image and tracks the users of each image.
#[derive(Debug, Clone, Default)]
pub(super) struct Images(Arc<Mutex<State>>);

impl Images {
    /// Makes sure that the image exists on the engine and returns its id; registers `user` as one of its users.
    pub(super) async fn get(
        &self,
        engine: &Engine,
        config: &Config,
        wanted: &Wanted<'_>,
        user: &str,
        report: Report<'_>,
    ) -> Result<String, DriverError> {
        let name = wanted.image.name();
        let unclear = |e: EngineError| failed(format!("image {name}: {e}"), e.is_uncertain());
        let here = engine.image(&name).await.map_err(unclear)?;
        let id = match here {
            Some(id) if !wanted.force_pull && wanted.image.tag != "latest" => id,
            // The task's own archive is the image, whatever a registry has.
            _ if wanted.force_pull && wanted.archive.is_none() => self.pull(engine, config, wanted, report).await?,
            here => match wanted.archive {
                Some((dir, archive)) => {
                    load(engine, dir, archive).await?;
                    let loaded = engine.image(&name).await.map_err(unclear)?;
                    loaded.ok_or_else(|| failed(format!("the archive {archive:?} holds no image {name}"), false))?
                }
                None => match (self.pull(engine, config, wanted, report).await, here) {
                    (Ok(id), _) => id,
                    // "latest" is pulled each time; if the registry does not answer with it, the local image is used.
                    (Err(error), Some(id)) => {
                        tracing::warn!(%error, name, "cannot look for a newer image; using the one that is here");
                        id
                    }
                    (Err(error), None) => return Err(error),
                },
            },
        };
        if config.gc_image {
            let mut state = lock(&self.0);
            state.users.entry(id.clone()).or_default().insert(user.to_owned());
            if let Some(removal) = state.removals.remove(&id) {
                removal.abort();
            }
        }
        Ok(id)
    }

    async fn pull(
        &self,
        engine: &Engine,
        config: &Config,
        wanted: &Wanted<'_>,
        report: Report<'_>,
    ) -> Result<String, DriverError> {
        let reference = wanted.image;
        let name = reference.name();
        let credentials = match credentials(config, wanted.auth, reference).await {
            Ok(credentials) => credentials,
            Err(error) if wanted.auth_soft_fail => {
                tracing::warn!(error, name, "no credentials for the registry; asking without");
                None
            }
            Err(error) => {
                let text = format!("Failed to find docker auth for repo {:?}: {error}", reference.repository);
                return Err(failed(text, false));
            }
        };
        report(Progressing::Begins);
        let running = lock(&self.0).pulls.get(&name).cloned();
        let pull = match running {
            Some(pull) => pull,
            None => self.start(engine, config, wanted.timeout, reference, credentials),
        };
        let (mut outcome, mut said) = (pull.outcome.clone(), pull.said.clone());
        let mut reports = tokio::time::interval_at(Instant::now() + REPORT, REPORT);
        loop {
            tokio::select! {
                outcome = outcome.wait_for(Option::is_some) => {
                    return match outcome.map(|outcome| outcome.clone()) {
                        Ok(Some(outcome)) => outcome.map_err(DriverFailure::into_error),
                        _ => Err(failed("wait aborted".to_owned(), true)),
                    };
                }
                _ = reports.tick() => report(Progressing::Is(said.borrow_and_update().clone())),
            }
        }
    }

    /// Runs the pull as a separate task, as the waiting tasks may be dropped.
    fn start(
        &self,
        engine: &Engine,
        config: &Config,
        timeout: Duration,
        reference: &Reference,
        credentials: Option<Credentials>,
    ) -> Arc<Pull> {
        let (done, outcome) = watch::channel(None);
        let (saying, said) = watch::channel("No progress".to_owned());
        let pull = Arc::new(Pull { outcome, said });
        let name = reference.name();
        // Another pull of this image may have been first.
        match lock(&self.0).pulls.entry(name.clone()) {
            Entry::Occupied(other) => return Arc::clone(other.get()),
            Entry::Vacant(none) => drop(none.insert(Arc::clone(&pull))),
        }
        let (images, engine, reference) = (self.clone(), engine.clone(), reference.clone());
        let (activity, own) = (config.pull_activity_timeout, Arc::clone(&pull));
        crate::sys::task::spawn(async move {
            let pulling = fetch(&engine, &reference, credentials, activity, &saying);
            let outcome = tokio::time::timeout(timeout, pulling).await.unwrap_or_else(|_| {
                let message = format!("Failed to pull `{name}`: not done within {timeout:?}");
                Err(DriverFailure { message, recoverable: true })
            });
            // Removes only its own entry: another pull may have this name by now.
            let mut state = lock(&images.0);
            if state.pulls.get(&name).is_some_and(|pull| Arc::ptr_eq(pull, &own)) {
                state.pulls.remove(&name);
            }
            drop(state);
            done.send_replace(Some(outcome));
        });
        pull
    }

    /// Unregisters `user`. When the last user of the image is gone, the removal delay starts.
    pub(super) fn release(&self, engine: &Engine, config: &Config, id: &str, user: &str) {
        let mut state = lock(&self.0);
        let Some(users) = state.users.get_mut(id) else { return };
        users.remove(user);
        if !users.is_empty() || !config.gc_image {
            return;
        }
        state.users.remove(id);
        let (images, engine, delay, image) = (self.clone(), engine.clone(), config.image_delay, id.to_owned());
        let removal = crate::sys::task::spawn(async move {
            tokio::time::sleep(delay).await;
            for _ in 0..REMOVALS {
                // From here on a new user finds the image gone, or the engine refuses the removal because of the new container.
                match engine.remove_image(&image).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => {
                        tracing::debug!(%error, image, "removing an image");
                        tokio::time::sleep(REMOVAL_PAUSE).await;
                    }
                    _ => break,
                }
            }
            lock(&images.0).removals.remove(&image);
        });
        state.removals.insert(id.to_owned(), removal.abort_handle());
    }

    /// Registers a recovered task as a user of its image.
    pub(super) fn adopt(&self, config: &Config, id: &str, user: &str) {
        if config.gc_image && !id.is_empty() {
            lock(&self.0).users.entry(id.to_owned()).or_default().insert(user.to_owned());
        }
    }
}

/// Which image a task needs, and how to get it.
pub(super) struct Wanted<'a> {
    pub(super) image: &'a Reference,
    pub(super) auth: &'a Auth,
    pub(super) auth_soft_fail: bool,
    pub(super) force_pull: bool,
    pub(super) timeout: Duration,
    /// An archive in the task's `local` directory.
    pub(super) archive: Option<(&'a Path, &'a str)>,
}

async fn load(engine: &Engine, dir: &Path, archive: &str) -> Result<(), DriverError> {
    let problem = |e: String| failed(format!("unable to load image from archive {archive:?}: {e}"), false);
    let open = || {
        let root = crate::sys::path::Root::open(dir)?;
        // Opened without blocking: a FIFO that a task put there would block everything.
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file: std::fs::File = root.open_beneath(Path::new(archive), flags, rustix::fs::Mode::empty())?.into();
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        Ok(file)
    };
    let file = open().map_err(|e: std::io::Error| problem(e.to_string()))?;
    engine.load(file).await.map_err(|e| problem(e.to_string()))
}

/// Whether a pull that failed with this message would fail each time. A registry that does not have an image now may get it.
fn is_final(message: &str) -> bool {
    message.split_once("Error: image ").is_some_and(|(_, rest)| rest.contains(" not found"))
}

async fn fetch(
    engine: &Engine,
    reference: &Reference,
    credentials: Option<Credentials>,
    activity: Duration,
    saying: &watch::Sender<String>,
) -> Outcome {
    let name = reference.name();
    let mut layers = Layers::default();
    let problem =
        |e: &str, recoverable| DriverFailure { message: format!("Failed to pull `{name}`: {e}"), recoverable };
    let pulling = engine.pull(&reference.repository, &reference.tag, credentials.as_ref());
    let mut pulling = pulling.map_err(|e| problem(&e.to_string(), false))?;
    loop {
        match tokio::time::timeout(activity, pulling.next()).await {
            Err(_) => return Err(problem(&format!("nothing received for {activity:?}"), true)),
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                let text = error.to_string();
                return Err(problem(&text, !is_final(&text)));
            }
            Ok(Some(Ok(progress))) => {
                layers.add(progress);
                saying.send_replace(layers.to_string());
            }
        }
    }
    match engine.image(&name).await {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(problem("the engine has fetched it and does not know it", true)),
        Err(error) => Err(problem(&error.to_string(), true)),
    }
}

/// Progress of an image's layers.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, Progress>);

impl Layers {
    fn add(&mut self, progress: Progress) {
        // Messages about the image as a whole have the tag in place of the layer's id, and no size.
        if progress.layer.len() != 12 {
            return;
        }
        let known = self.0.entry(progress.layer.clone()).or_default();
        if progress.status == "Downloading" {
            (known.current, known.total) = (progress.current, progress.total);
        } else if progress.status.starts_with("Download complete") || progress.status == "Pull complete" {
            known.current = known.total;
        }
        known.status = progress.status;
    }
}

impl std::fmt::Display for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |wanted: &[&str]| self.0.values().filter(|l| wanted.contains(&l.status.as_str())).count();
        let pulled =
            count(&["Pull complete", "Already exists", "Download complete", "Extracting", "Verifying Checksum"]);
        let (waiting, pulling) = (count(&["Waiting", "Pulling fs layer"]), count(&["Downloading"]));
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let mib = |n: u64| n as f64 / 1024.0 / 1024.0;
        let (current, total) = self.0.values().fold((0, 0), |(c, t), l| (c + l.current, t + l.total));
        let layers = self.0.len();
        write!(f, "Pulled {pulled}/{layers} ({:.1}MiB/{:.1}MiB) layers: ", mib(current), mib(total))?;
        write!(f, "{waiting} waiting/{pulling} pulling")
    }
}

/// The credentials: first the task's own, then those in the file and of the helpers that it names, then those of the configured
/// helper.
async fn credentials(config: &Config, auth: &Auth, reference: &Reference) -> Result<Option<Credentials>, String> {
    if !auth.username.is_empty() || !auth.password.is_empty() {
        return Ok(Some(Credentials {
            username: auth.username.clone(),
            password: auth.password.clone(),
            server_address: auth.server_address.clone(),
            ..Credentials::default()
        }));
    }
    let registry = reference.registry();
    if let Some(path) = &config.auth_file {
        let problem = |e: String| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| problem(e.to_string()))?;
        let file: Value = serde_json::from_str(&text).map_err(|e| problem(e.to_string()))?;
        if let Some(found) = from_file(&file, registry).map_err(problem)? {
            return Ok(Some(found));
        }
        let helpers = [file.get("credHelpers").and_then(|helpers| helpers.get(registry)), file.get("credsStore")];
        for helper in helpers.into_iter().flatten() {
            if let Some(helper) = helper.as_str().filter(|helper| !helper.is_empty())
                && let Some(found) = from_helper(helper, registry).await?
            {
                return Ok(Some(found));
            }
        }
    }
    if config.auth_helper.is_empty() { Ok(None) } else { from_helper(&config.auth_helper, registry).await }
}

fn from_file(file: &Value, registry: &str) -> Result<Option<Credentials>, String> {
    let bare = |name: &str| {
        let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
        let host = name.split('/').next().unwrap_or_default();
        if host == "docker.io" { "index.docker.io".to_owned() } else { host.to_owned() }
    };
    let auths = file.get("auths").and_then(Value::as_object);
    let entry = auths.and_then(|auths| {
        auths.get(registry).or_else(|| auths.iter().find(|(name, _)| bare(name) == bare(registry)).map(|(_, v)| v))
    });
    let Some(entry) = entry else { return Ok(None) };
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut found = Credentials {
        username: text("username"),
        password: text("password"),
        identity_token: text("identitytoken"),
        server_address: registry.to_owned(),
    };
    let auth = text("auth");
    if !auth.is_empty() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(auth).map_err(|e| format!("auth: {e}"))?;
        let decoded = String::from_utf8(decoded).map_err(|e| format!("auth: {e}"))?;
        let (name, password) = decoded.split_once(':').ok_or("auth holds no user and password")?;
        (found.username, found.password) = (name.to_owned(), password.trim_end_matches('\0').to_owned());
    }
    Ok((!found.username.is_empty() || !found.identity_token.is_empty()).then_some(found))
}

async fn from_helper(helper: &str, registry: &str) -> Result<Option<Credentials>, String> {
    let program = format!("docker-credential-{helper}");
    let asking = async {
        let mut command = tokio::process::Command::new(&program);
        command
            .arg("get")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let (mut child, _listed) = children::list(|| command.spawn(), tokio::process::Child::id)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(registry.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output =
        tokio::time::timeout(HELPER, asking).await.map_err(|_| format!("{program}: no answer in {HELPER:?}"))?;
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        // Helpers print their errors on stdout.
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.trim();
        return if said == NONE_FOUND { Ok(None) } else { Err(format!("{program}: {said}")) };
    }
    let said: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("{program}: {e}"))?;
    let text = |key: &str| said.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (username, secret) = (text("Username"), text("Secret"));
    if username.is_empty() && secret.is_empty() {
        return Ok(None);
    }
    let known = Credentials { server_address: registry.to_owned(), ..Credentials::default() };
    Ok(Some(if username == "<token>" {
        Credentials { identity_token: secret, ..known }
    } else {
        Credentials { username, password: secret, ..known }
    }))
}

/// An engine that cannot be reached makes the error recoverable.
pub(super) fn unknown(error: &EngineError) -> DriverError {
    failed(error.to_string(), error.is_uncertain())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TestDockerImageRef`, `TestParseDockerImage`.
    #[test]
    fn e1_names_of_images_are_taken_apart() {
        for (image, repository, tag, name) in [
            ("busybox", "busybox", "latest", "busybox:latest"),
            ("busybox:1.36", "busybox", "1.36", "busybox:1.36"),
            ("https://gcr.io/a/b:c", "gcr.io/a/b", "c", "gcr.io/a/b:c"),
            ("host:5000/a/b", "host:5000/a/b", "latest", "host:5000/a/b:latest"),
            ("host:5000/a/b:v1", "host:5000/a/b", "v1", "host:5000/a/b:v1"),
            ("a/b:tag@sha256:00ff", "a/b", "sha256:00ff", "a/b@sha256:00ff"),
            ("h:5000/b@sha256:00ff", "h:5000/b", "sha256:00ff", "h:5000/b@sha256:00ff"),
        ] {
            let reference = Reference::parse(image).unwrap();
            assert_eq!((reference.repository.as_str(), reference.tag.as_str()), (repository, tag), "{image}");
            assert_eq!(reference.name(), name);
        }
        for (image, registry) in [
            ("a/b", HUB),
            ("docker.io/a/b:1", HUB),
            ("index.docker.io/b", HUB),
            ("my.docker.io/b", "my.docker.io"),
            ("localhost/b", "localhost"),
            ("r.io:1/b", "r.io:1"),
            ("[::1]:5000/b", "[::1]:5000"),
        ] {
            assert_eq!(Reference::parse(image).unwrap().registry(), registry, "{image}");
        }
    }

    #[test]
    fn e1_names_that_no_image_can_have_are_refused_for_good() {
        for image in ["", "name:", "name@", ":1", "Name", "r.io/Name", "a b", "a/b:c d", "/a", "a//b", "a/", "-a", "é"]
        {
            let error = Reference::parse(image).unwrap_err();
            assert!(matches!(error, DriverError::Failed { recoverable: false, .. }), "{error:?}");
            assert!(
                error.to_string().starts_with(&format!("the image name {image:?} is not valid; write ")),
                "{error}"
            );
        }
    }

    /// What a registry does not have now, it may have at the next try.
    #[test]
    fn e1_a_pull_is_tried_again_unless_the_engine_says_that_there_is_no_such_image() {
        for (message, is) in [
            ("pull the image: manifest for r.io/a:1 not found: manifest unknown (status 404)", false),
            ("pull the image: pull access denied for a, repository does not exist (status 404)", false),
            ("pull the image: toomanyrequests (status 500)", false),
            ("pull the image: Error: image library/a:1 not found (status 500)", true),
        ] {
            assert_eq!(is_final(message), is, "{message}");
        }
    }

    /// D95: the operator's credentials for one registry are not sent to the registry that an engine derives from the same image
    /// name.
    #[test]
    fn d95_credentials_go_to_the_registry_that_the_engine_asks() {
        for (image, registry) in [
            ("EVIL/x", "EVIL"),
            ("Evil/a/b:c", "Evil"),
            ("https://Evil/x", "Evil"),
            ("localhost/x", "localhost"),
            ("LOCALHOST/x", "LOCALHOST"),
            ("DOCKER.IO/x", "DOCKER.IO"),
            ("evil/x", HUB),
            ("x", HUB),
        ] {
            assert_eq!(Reference::parse(image).unwrap().registry(), registry, "{image}");
        }
    }

    /// `TestDockerDriver_AuthConfiguration`.
    #[test]
    fn e1_credentials_are_found_in_a_file() {
        let file = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "dGVzdDoxMjM0"},
                       "quay.io": {"username": "u", "password": "p"}, "empty.io": {}}}"#;
        let read = |text: &str, registry: &str| from_file(&serde_json::from_str::<Value>(text).unwrap(), registry);
        let of = |registry: &str| read(file, registry).unwrap().map(|c| (c.username, c.password));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of(HUB), pair("test", "1234"));
        assert_eq!(of("quay.io"), pair("u", "p"));
        assert_eq!(of("other.io"), None);
        assert_eq!(of("empty.io"), None);
        let short = r#"{"auths": {"docker.io": {"username": "u", "password": "p"}}}"#;
        assert_eq!(read(short, HUB).unwrap().map(|found| found.username).as_deref(), Some("u"));
        assert!(read(r#"{"auths": {"x": {"auth": "?"}}}"#, "x").is_err());
    }
}
