//! Records of volumes, one file each: written before each step, and removed when no step of the volume remains to be undone.
//! Beside it there is a lock, which processes that share the directory hold while they execute steps of the volume.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::manager::{Ledger, Locked, Recorded};
use super::node::{VolumeId, safe};
use super::usage::VolumeUse;
use crate::store::{UNFINISHED, write_atomically};
use crate::sys::owned::OwnDir;
use crate::sys::time::boot_id;

/// Version of the format; records of a newer one are not touched.
const VERSION: u32 = 1;
/// Limit of a record, in bytes: some hundred are needed for each user.
const LONGEST: u64 = 16 << 20;
const SUFFIX: &str = ".json";
const LOCK_SUFFIX: &str = ".lock";

#[derive(serde::Serialize, serde::Deserialize)]
struct Record {
    version: u32,
    boot_id: String,
    id: VolumeId,
    volume: VolumeUse,
}

/// The records of one plugin.
#[derive(Debug)]
pub struct Files {
    dir: Arc<OwnDir>,
    boot: String,
}

/// The lock of a volume. It exists as long as the record or a process that waits for it.
struct Held {
    dir: Arc<OwnDir>,
    /// Of the record.
    name: String,
    _file: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Removed while it is held: whoever has opened it meanwhile finds that it is gone, and opens another one.
        let at = |name: &str| rustix::fs::statat(&*self.dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if matches!(at(&self.name), Err(Errno::NOENT)) {
            remove_unfinished(&self.dir, &self.name);
            // If it stays, the next user of the volume removes it.
            let _ = rustix::fs::unlinkat(&*self.dir, lock_of(&self.name), rustix::fs::AtFlags::empty());
        }
    }
}

/// Removes what processes that were killed in the middle of writing a record have left; for who has its lock.
fn remove_unfinished(dir: &OwnDir, name: &str) {
    for entry in rustix::fs::Dir::read_from(dir).into_iter().flatten().flatten() {
        let of_record = |found: &str| {
            found.strip_prefix(name).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(UNFINISHED))
        };
        if entry.file_name().to_str().is_ok_and(of_record) {
            // If it stays, the next user of the volume removes it.
            let _ = rustix::fs::unlinkat(dir, entry.file_name(), rustix::fs::AtFlags::empty());
        }
    }
}

fn lock_of(name: &str) -> String {
    format!("{name}{LOCK_SUFFIX}")
}

impl Files {
    /// Opens the records in a directory, which is created (0700) if it is missing; its parent must exist.
    ///
    /// # Errors
    /// Also fails when other users may write to it.
    pub fn open(above: &OwnDir, name: &str) -> io::Result<Files> {
        Ok(Files { dir: Arc::new(above.make(safe(name).as_ref(), 0o700)?), boot: boot_id()? })
    }

    fn name(id: &VolumeId) -> String {
        // Neither part contains a comma.
        format!("{}{SUFFIX}", safe(&format!("{},{}", safe(&id.namespace), safe(&id.id))))
    }

    fn read(&self, name: &str) -> io::Result<Recorded> {
        let bytes = self.dir.read(name.as_ref(), LONGEST)?;
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let record: Record = crate::spec::json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if record.version != VERSION {
            return Err(wrong(format!("version {}, which is none of this program", record.version)));
        }
        if Files::name(&record.id) != name {
            return Err(wrong(format!("it names volume {:?}", record.id.id)));
        }
        let mut volume = record.volume;
        if record.boot_id != self.boot {
            volume.after_reboot();
        }
        Ok((record.id, volume))
    }
}

impl Ledger for Files {
    fn load(&self) -> io::Result<Vec<Recorded>> {
        let mut all = Vec::new();
        // Read through the descriptor, so that it is the directory that was checked.
        for entry in rustix::fs::Dir::read_from(&*self.dir)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| name.ends_with(SUFFIX)) else { continue };
            let path = self.dir.path().join(name);
            let read = self.read(name);
            // Another process has just removed it.
            if matches!(&read, Err(error) if error.kind() == io::ErrorKind::NotFound) {
                continue;
            }
            all.push(read.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", shown(&path))))?);
        }
        Ok(all)
    }

    fn lock(&self, id: &VolumeId, waits: bool) -> io::Result<Option<Locked>> {
        let name = Files::name(id);
        let how = if waits { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
        loop {
            let file = self.dir.lock_file(lock_of(&name).as_ref())?;
            match rustix::fs::flock(&file, how) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => continue,
                other => other?,
            }
            // Its last holder may have removed it.
            if file.metadata()?.nlink() == 0 {
                continue;
            }
            let hold = Box::new(Held { dir: Arc::clone(&self.dir), name: name.clone(), _file: file });
            let volume = match self.read(&name) {
                Ok((_, volume)) => volume,
                Err(error) if error.kind() == io::ErrorKind::NotFound => VolumeUse::default(),
                Err(error) => {
                    let path = self.dir.path().join(&name);
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", shown(&path))));
                }
            };
            return Ok(Some(Locked { volume, hold }));
        }
    }

    fn save(&self, id: &VolumeId, volume: &VolumeUse) -> io::Result<()> {
        let name = Files::name(id);
        if volume.is_empty() {
            return match rustix::fs::unlinkat(&*self.dir, &name, rustix::fs::AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let record = Record { version: VERSION, boot_id: self.boot.clone(), id: id.clone(), volume: volume.clone() };
        write_atomically(&self.dir, &name, &serde_json::to_vec(&record)?)
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{Phase, User};

    #[test]
    fn f7_two_processes_take_turns_on_a_volume_and_see_each_others_records() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let above = OwnDir::open(dir.path()).unwrap();
        // Locks belong to the opened file, so two of them in one process are as good as two processes.
        let (one, other) = (Files::open(&above, "p").unwrap(), Arc::new(Files::open(&above, "p").unwrap()));
        let id = VolumeId { namespace: "default".to_owned(), id: "v".to_owned() };
        let held = one.lock(&id, false).unwrap().unwrap();
        assert!(other.lock(&id, false).unwrap().is_none() && held.volume.is_empty());
        let another = VolumeId { namespace: "default".to_owned(), id: "w".to_owned() };
        drop(other.lock(&another, false).unwrap().unwrap());
        let waiting = std::thread::spawn({
            let (other, id) = (Arc::clone(&other), id.clone());
            move || other.lock(&id, true).unwrap().unwrap().volume
        });
        let volume = VolumeUse { staged: Some(Phase::Done), ..VolumeUse::default() };
        one.save(&id, &volume).unwrap();
        drop(held);
        assert_eq!(waiting.join().unwrap(), volume);
        // With the last record its lock goes, and whoever opened it before takes the new one.
        let held = one.lock(&id, false).unwrap().unwrap();
        let waiting = std::thread::spawn(move || other.lock(&id, true).unwrap().unwrap().volume);
        let id = VolumeId { namespace: "default".to_owned(), id: "v".to_owned() };
        one.save(&id, &VolumeUse::default()).unwrap();
        // A process was killed in the middle of writing a record; another volume's is not touched.
        let unfinished = |id: &VolumeId| dir.path().join("p").join(format!("{}.4711{UNFINISHED}", Files::name(id)));
        for id in [&id, &another] {
            std::fs::write(unfinished(id), "{").unwrap();
        }
        drop(held);
        assert!(waiting.join().unwrap().is_empty());
        assert!(!unfinished(&id).exists());
        std::fs::remove_file(unfinished(&another)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("p")).unwrap().count(), 0);
    }

    #[test]
    fn f7_records_come_back_and_another_boot_is_sure_of_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let above = OwnDir::open(dir.path()).unwrap();
        let mut files = Files::open(&above, "plugin/0").unwrap();
        let id = |id: &str| VolumeId { namespace: "default".to_owned(), id: id.to_owned() };
        let user = User { read_only: true, leaves: false, published: Some(Phase::Done) };
        let volume =
            VolumeUse { staged: Some(Phase::Done), users: [("a".to_owned(), user)].into(), ..VolumeUse::default() };
        for name in ["v/1", "v/2"] {
            files.save(&id(name), &volume).unwrap();
        }
        files.save(&id("v/2"), &VolumeUse::default()).unwrap();
        files.save(&id("v/2"), &VolumeUse::default()).unwrap();
        assert_eq!(files.load().unwrap(), [(id("v/1"), volume.clone())]);
        files.boot = "another".to_owned();
        let (_, found) = files.load().unwrap().remove(0);
        assert_eq!((found.staged, found.users["a"].published), (Some(Phase::Unsure), Some(Phase::Unsure)));
        let path = dir.path().join("plugin%2f0").join(Files::name(&id("v/1")));
        let text = std::fs::read_to_string(&path).unwrap().replace("\"version\":1", "\"version\":2");
        std::fs::write(&path, text).unwrap();
        let error = files.load().unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("plugin%2f0"), "{error}");
    }
}
