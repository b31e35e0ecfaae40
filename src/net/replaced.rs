//! Files in directories of our own that are replaced at once, so that whoever reads one finds the old content or the new one.

use std::io::{self, Write as _};
use std::path::Path;

use rustix::fs::AtFlags;

use super::lock::own_dir;
use crate::sys::owned::OwnDir;

/// The name under which the content of a file is written first.
fn temporary(name: &str) -> String {
    format!(".{name}.tmp")
}

/// Makes the file or replaces it; its directory is made if it does not exist.
pub(super) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let (own, temporary) = (own_dir(dir)?, temporary(name));
    let mut file = own.lock_file(temporary.as_ref())?;
    file.set_len(0)?;
    file.write_all(content)?;
    Ok(rustix::fs::renameat(&own, &temporary, &own, name)?)
}

/// Removes the file, and what a killed process has written of it; what is gone counts as removed.
pub(super) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    let own = match OwnDir::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for name in [name, &temporary(name)] {
        match rustix::fs::unlinkat(&own, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
