//! The built-in plugin: a directory for each volume, named by the volume's id.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::{Provided, Provision, VolumeError, VolumePlugins};
use crate::spec::collections::BTreeMap;
use crate::sys::owned::{OwnDir, resolve_parent};

/// The mode of a volume's directory, unless its author says otherwise.
const MODE: u32 = 0o700;

/// Who may use the directory.
#[derive(Debug, PartialEq, Eq)]
struct Access {
    mode: u32,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Access {
    fn read(parameters: &BTreeMap<String, String>) -> Result<Access, String> {
        let mut access = Access { mode: MODE, uid: None, gid: None };
        for (name, text) in parameters {
            // Nomad's word for an id that stays as it is.
            let id = || match text.as_str() {
                "-1" => Ok(None),
                text => match text.parse::<u32>() {
                    Ok(id) if id != u32::MAX => Ok(Some(id)),
                    _ => Err(format!("the parameter {name} must be a number of a user or group, not {text:?}")),
                },
            };
            match name.as_str() {
                "uid" => access.uid = id()?,
                "gid" => access.gid = id()?,
                "mode" => {
                    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
                    access.mode = mode.ok_or_else(|| {
                        format!("the parameter mode must be an octal number such as 0750, not {text:?}")
                    })?;
                }
                _ => return Err(format!("the parameter {name:?} is not known; there are mode, uid and gid")),
            }
        }
        Ok(access)
    }
}

/// A name that the directory has until it is complete.
fn draft(id: &str) -> String {
    format!(".new-{id}")
}

/// Opens a directory in this one, which is none of a link.
fn open(dir: &OwnDir, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        // Its mode may let nobody read it.
        Err(Errno::ACCESS) => rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty()),
        other => other,
    }
}

/// Makes a directory that never is seen with another owner or mode.
fn make(dir: &OwnDir, id: &str, access: &Access) -> Result<(), Errno> {
    match open(dir, id) {
        Err(Errno::NOENT) => {}
        other => return other.map(drop),
    }
    let draft = draft(id);
    match rustix::fs::unlinkat(dir, &draft, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    rustix::fs::mkdirat(dir, &draft, Mode::from_raw_mode(MODE))?;
    let complete = || {
        let made = open(dir, &draft)?;
        rustix::fs::fchown(&made, access.uid.map(Uid::from_raw), access.gid.map(Gid::from_raw))?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(access.mode))?;
        rustix::fs::renameat_with(dir, &draft, dir, id, RenameFlags::NOREPLACE)?;
        rustix::fs::fsync(dir)
    };
    complete().inspect_err(|_| {
        // Nobody has seen it.
        let _gone = rustix::fs::unlinkat(dir, &draft, AtFlags::REMOVEDIR);
    })
}

impl VolumePlugins {
    /// The directory of volumes, which is made if it is missing.
    pub(super) fn own_volumes(&self) -> io::Result<OwnDir> {
        let (Some(parent), Some(name)) = (self.volumes_dir.parent(), self.volumes_dir.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it must be a directory below another one"));
        };
        OwnDir::open_shared(&resolve_parent(parent)?)?.make(name, 0o711)
    }

    pub(super) fn make(&self, wanted: &Provision) -> Result<Provided, VolumeError> {
        let access = Access::read(&wanted.parameters).map_err(VolumeError::Parameter)?;
        let at = |path: &Path| {
            let (name, path) = (wanted.name.clone(), path.to_owned());
            move |source| VolumeError::Directory { name, path, source }
        };
        let dir = self.own_volumes().map_err(at(&self.volumes_dir))?;
        let path = dir.path().join(&wanted.id);
        make(&dir, &wanted.id, &access).map_err(|error| at(&path)(error.into()))?;
        Ok(Provided { path, bytes: 0 })
    }

    pub(super) fn remove(&self, wanted: &Provision) -> Result<(), VolumeError> {
        let failed = |why: String| {
            let (plugin, id) = (wanted.plugin.clone(), wanted.id.clone());
            VolumeError::Failed { plugin, operation: "delete", id, why }
        };
        let dir = self.own_volumes().map_err(|error| failed(error.to_string()))?;
        let names = [draft(&wanted.id), wanted.id.clone()];
        let left = names.iter().flat_map(|name| super::super::remove_tree(&dir.path().join(name)));
        let told: Vec<String> = left.map(|error| super::super::chain(&error)).collect();
        if !told.is_empty() {
            return Err(failed(told.join("; ")));
        }
        rustix::fs::fsync(dir.as_fd()).map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::IntoMap as _;

    #[test]
    fn parameters_are_a_mode_and_ids() {
        let read = |pairs: &[(&str, &str)]| {
            Access::read(&pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).into_map())
        };
        assert_eq!(read(&[]), Ok(Access { mode: 0o700, uid: None, gid: None }));
        let all = [("mode", "2750"), ("uid", "1000"), ("gid", "-1")];
        assert_eq!(read(&all), Ok(Access { mode: 0o2750, uid: Some(1000), gid: None }));
        for (name, text, told) in [
            ("mode", "0788", "octal"),
            ("mode", "10000", "octal"),
            ("mode", "-1", "octal"),
            ("uid", "root", "number"),
            ("gid", "4294967295", "number"),
            ("uid", "-2", "number"),
            ("owner", "1", "not known"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.contains(told), "{name} {text}: {error}");
        }
    }
}
