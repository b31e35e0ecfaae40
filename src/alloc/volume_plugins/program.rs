//! Plugins that are programs: one call per operation, with the words and the environment of Nomad's interface.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{Found, Provided, Provision, VolumeError, VolumePlugins};
use crate::net::{Output, run_program};
use crate::spec::collections::BTreeMap;
use crate::spec::{LONGEST_MESSAGE, json, shortened};
use crate::sys::owned::{OwnDir, resolve};

/// How long a program has to tell its version.
const FINGERPRINT: Duration = Duration::from_secs(5);
/// How long it has to create or delete a volume.
const OPERATION: Duration = Duration::from_mins(1);
/// Most programs of the directory.
const MOST: usize = 100;

fn stamp(file: &File) -> io::Result<(u64, u64, i64, i64)> {
    let seen = file.metadata()?;
    Ok((seen.ino(), seen.size(), seen.ctime(), seen.ctime_nsec()))
}

/// Whether a volume can name a plugin so: no path, and no hidden file.
fn is_name(name: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_good)
}

/// A member of what a program told.
fn told(output: &Output, key: &str) -> Option<Value> {
    json::from_slice::<Value>(&output.stdout).ok()?.get_mut(key).map(Value::take)
}

/// The version in what a program told.
fn version(output: &Output) -> Result<String, String> {
    if !output.status.success() {
        return Err(output.reason());
    }
    let text = told(output, "version");
    let text = text.as_ref().and_then(Value::as_str).unwrap_or_default();
    let is_version = text.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()) && text.len() <= 128;
    if is_version { Ok(text.to_owned()) } else { Err("it must print {\"version\": \"0.0.1\"}".to_owned()) }
}

impl VolumePlugins {
    fn programs(&self) -> io::Result<OwnDir> {
        OwnDir::open(&resolve(&self.plugin_dir)?)
    }

    /// The file of a program that only this user or root can have changed.
    fn program(dir: &OwnDir, name: &str) -> io::Result<(PathBuf, File)> {
        let file = dir.file(OsStr::new(name))?;
        if file.metadata()?.mode() & 0o111 == 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not executable: chmod +x it"));
        }
        Ok((dir.path().join(name), file))
    }

    /// Asks the programs that are new or have changed for their versions.
    pub(super) fn look(&self, known: &BTreeMap<String, Found>) -> BTreeMap<String, Found> {
        let mut found = BTreeMap::new();
        let dir = match self.programs() {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return found,
            Err(error) => {
                tracing::warn!(dir = %self.plugin_dir.display(), %error, "no host volume plugin is used");
                return found;
            }
        };
        let names =
            dir.path().read_dir().into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in names.filter(|name| is_name(name)).take(MOST) {
            // Configuration of plugins may be beside them.
            let Ok((path, file)) = VolumePlugins::program(&dir, &name) else { continue };
            let Ok(stamp) = stamp(&file) else { continue };
            if let Some(same) = known.get(&name).filter(|known| known.stamp == stamp) {
                found.insert(name, same.clone());
                continue;
            }
            let words = [&*path.to_string_lossy(), "fingerprint"];
            let output = run_program(None, &path, &words, &[("DHV_OPERATION", "fingerprint")], FINGERPRINT);
            let version = output.map_err(|error| error.to_string()).and_then(|output| version(&output));
            let version = version
                .inspect_err(|why| tracing::warn!(plugin = name, why, "a host volume plugin does not tell its version"))
                .ok();
            found.insert(name, Found { stamp, version });
        }
        found
    }

    fn call(&self, operation: &'static str, of: &Provision, more: &[(&str, &str)]) -> Result<Output, VolumeError> {
        let missing = || VolumeError::NoPlugin { name: of.plugin.clone(), dir: self.plugin_dir.clone() };
        let failed = |error: &io::Error| failed(operation, of, error.to_string());
        if !is_name(&of.plugin) {
            return Err(missing());
        }
        let unopened =
            |error: io::Error| if error.kind() == io::ErrorKind::NotFound { missing() } else { failed(&error) };
        let dir = self.programs().map_err(unopened)?;
        let (path, _) = VolumePlugins::program(&dir, &of.plugin).map_err(unopened)?;
        let parameters = json::to_string(&of.parameters).unwrap_or_default();
        let (volumes, plugins) = (self.volumes_dir.to_string_lossy(), dir.path().to_string_lossy());
        let mut env = vec![
            ("DHV_OPERATION", operation),
            ("DHV_VOLUMES_DIR", &*volumes),
            ("DHV_PLUGIN_DIR", &*plugins),
            ("DHV_NAMESPACE", &*of.namespace),
            ("DHV_VOLUME_NAME", &*of.name),
            ("DHV_VOLUME_ID", &*of.id),
            ("DHV_NODE_ID", &*of.node_id),
            ("DHV_NODE_POOL", &*of.node_pool),
            ("DHV_PARAMETERS", &*parameters),
        ];
        env.extend(more);
        let words = [&*path.to_string_lossy(), operation];
        let output = run_program(Some((&self.own_dir, &of.id)), &path, &words, &env, OPERATION);
        let output = output.map_err(|error| failed(&error))?;
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        tracing::debug!(plugin = of.plugin, volume = of.id, operation, %stdout, %stderr, "a host volume plugin has ended");
        Ok(output)
    }

    pub(super) fn ask_to_create(&self, wanted: &Provision) -> Result<Provided, VolumeError> {
        self.own_volumes().map_err(|error| failed("create", wanted, error.to_string()))?;
        let (least, most) = (wanted.capacity.0.to_string(), wanted.capacity.1.to_string());
        let more = [("DHV_CAPACITY_MIN_BYTES", &*least), ("DHV_CAPACITY_MAX_BYTES", &*most)];
        let output = self.call("create", wanted, &more)?;
        succeeded("create", wanted, &output)?;
        let path = told(&output, "path").and_then(|path| Some(PathBuf::from(path.as_str()?)));
        let bytes = told(&output, "bytes").and_then(|bytes| bytes.as_i64()).unwrap_or(0);
        match path {
            Some(path) if path.is_absolute() => Ok(Provided { path, bytes }),
            _ => Err(failed("create", wanted, "it must print {\"path\": \"/...\", \"bytes\": 0}".to_owned())),
        }
    }

    pub(super) fn ask_to_delete(&self, wanted: &Provision) -> Result<(), VolumeError> {
        let path = wanted.path.to_string_lossy();
        let output = self.call("delete", wanted, &[("DHV_CREATED_PATH", &path)])?;
        succeeded("delete", wanted, &output)?;
        // Its lock: the volume is gone, and its id never comes again.
        if let Ok(locks) = OwnDir::open(&self.own_dir.join("lock")) {
            let _gone = rustix::fs::unlinkat(&locks, &wanted.id, rustix::fs::AtFlags::empty());
        }
        Ok(())
    }
}

fn failed(operation: &'static str, of: &Provision, why: String) -> VolumeError {
    VolumeError::Failed { plugin: of.plugin.clone(), operation, id: of.id.clone(), why }
}

fn succeeded(operation: &'static str, of: &Provision, output: &Output) -> Result<(), VolumeError> {
    if output.status.success() {
        return Ok(());
    }
    let said = told(output, "error").and_then(|said| Some(said.as_str()?.to_owned()));
    let why = said.map_or_else(|| output.reason(), |said| format!("{}: {said}", output.reason()));
    Err(failed(operation, of, shortened(&why, LONGEST_MESSAGE).into_owned()))
}
