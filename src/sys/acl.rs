//! POSIX access control lists of files, as `acl(5)` describes them and `system.posix_acl_access` stores them.

use crate::spec::Order as _;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The extended attribute that is a file's access control list.
const NAME: &str = "system.posix_acl_access";
/// The list that a directory passes on to new entries in it.
const INHERITED: &str = "system.posix_acl_default";
/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
/// Longest value of an extended attribute, in bytes.
const MOST: usize = 1 << 16;
/// The id of an entry for no particular user or group.
const NO_ID: u32 = u32::MAX;

/// To read a file, or list a directory.
pub const READ: u16 = 4;
/// To write to a file, or change what is in a directory.
pub const WRITE: u16 = 2;
/// To execute a file, or go through a directory.
pub const EXECUTE: u16 = 1;

/// The subject of an entry, in the order that the kernel requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The file's owner.
    Owner,
    /// A user by id.
    User(u32),
    /// The file's group.
    OwningGroup,
    /// A group by id.
    Group(u32),
    /// The maximum permission of users and groups by id, and of the file's group.
    Mask,
    /// All other users.
    Others,
}

/// Entries: the permissions ([`READ`], [`WRITE`], [`EXECUTE`]) of each subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(pub Vec<(Who, u16)>);

impl Acl {
    /// The list of an open file; `None` where it has none besides its mode, or its file system does not support lists.
    ///
    /// # Errors
    /// What `fgetxattr(2)` says (EBADF for `O_PATH`), `InvalidData` for a list of another version.
    pub fn of(file: impl AsFd) -> io::Result<Option<Acl>> {
        let mut value = vec![0; MOST];
        match rustix::fs::fgetxattr(file, NAME, &mut value[..]) {
            Ok(length) => Acl::parse(&value[..length]).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the list of an open file, whose mode changes with it.
    ///
    /// # Errors
    /// What `fsetxattr(2)` says: EOPNOTSUPP on a file system without such lists.
    pub fn set(&self, file: impl AsFd) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(file, NAME, &self.to_bytes(), XattrFlags::empty())?)
    }

    /// Removes the lists of an open directory: its own, and the one that new entries inherit. A missing list is not an error.
    ///
    /// # Errors
    /// What `fremovexattr(2)` says.
    pub fn clear(dir: impl AsFd) -> io::Result<()> {
        for name in [NAME, INHERITED] {
            match rustix::fs::fremovexattr(dir.as_fd(), name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn parse(value: &[u8]) -> Option<Acl> {
        let (version, rest) = value.split_first_chunk()?;
        let (entries, []) = rest.as_chunks::<8>() else { return None };
        let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]| {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let who = match u16::from_le_bytes([t0, t1]) {
                0x01 => Who::Owner,
                0x02 => Who::User(id),
                0x04 => Who::OwningGroup,
                0x08 => Who::Group(id),
                0x10 => Who::Mask,
                0x20 => Who::Others,
                _ => return None,
            };
            Some((who, u16::from_le_bytes([p0, p1])))
        };
        let known = u32::from_le_bytes(*version) == VERSION;
        entries.iter().map(entry).collect::<Option<_>>().filter(|_| known).map(Acl)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut entries = self.0.clone();
        entries.order_by(Ord::cmp);
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (who, may) in entries {
            let (tag, id): (u16, u32) = match who {
                Who::Owner => (0x01, NO_ID),
                Who::User(id) => (0x02, id),
                Who::OwningGroup => (0x04, NO_ID),
                Who::Group(id) => (0x08, id),
                Who::Mask => (0x10, NO_ID),
                Who::Others => (0x20, NO_ID),
            };
            bytes.extend(tag.to_le_bytes());
            bytes.extend(may.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_were_written() {
        let list = Acl(vec![
            (Who::Owner, READ | WRITE | EXECUTE),
            (Who::User(7001), EXECUTE),
            (Who::OwningGroup, 0),
            (Who::Group(7), READ),
            (Who::Mask, READ | EXECUTE),
            (Who::Others, 0),
        ]);
        let bytes = list.to_bytes();
        assert_eq!(Acl::parse(&bytes), Some(list.clone()));
        assert_eq!(Acl::parse(&bytes[..bytes.len() - 1]), None, "cut off");
        assert_eq!(Acl::parse(&[3, 0, 0, 0]), None, "of another version");
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(Acl::of(&file).unwrap(), None);
        match list.set(&file) {
            Ok(()) => assert_eq!(Acl::of(&file).unwrap(), Some(list)),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
