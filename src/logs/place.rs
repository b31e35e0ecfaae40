//! How far a stream's files have grown: by this a successor knows whether the last piece of a killed writer was written.

use std::io;
use std::path::Path;

use rustix::fs::AtFlags;

use super::dir;

/// A position in a stream's files. What they hold beyond it was written later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The `n` of `<base>.<n>`.
    pub index: u64,
    /// Size of that file in bytes.
    pub size: u64,
}

impl Place {
    /// Where the files of `base` in `dir` end now; if there are none, where the first begins.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn end(dir: &Path, base: &str) -> io::Result<Place> {
        let root = dir::open_dir(dir)?;
        match dir::entries(&root, base)?.iter().rev().find(|entry| entry.regular) {
            None => Ok(Place::default()),
            Some(entry) => Ok(Place { index: entry.index, size: size(&root, base, entry.index)? }),
        }
    }

    /// Where the files end now, and how many bytes are in between; `None` if that cannot be determined any more, because one of the
    /// files is gone, packed or shorter.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn until_end(self, dir: &Path, base: &str) -> io::Result<Option<(Place, u64)>> {
        let root = dir::open_dir(dir)?;
        let listing = dir::list(&root, base)?;
        if listing.packed.iter().any(|index| *index >= self.index) {
            return Ok(None);
        }
        let later = listing.plain.iter().filter(|entry| entry.regular && entry.index >= self.index);
        let (mut end, mut bytes, mut next) = (self, 0, self.index);
        for entry in later {
            if entry.index != next {
                return Ok(None);
            }
            let size = size(&root, base, entry.index)?;
            let from = if entry.index == self.index { self.size } else { 0 };
            let Some(grown) = size.checked_sub(from) else { return Ok(None) };
            (end, bytes, next) = (Place { index: entry.index, size }, bytes + grown, next + 1);
        }
        // No file at all is the beginning of a stream.
        Ok((next > self.index || self == Place::default()).then_some((end, bytes)))
    }
}

fn size(root: &crate::sys::path::Root, base: &str, index: u64) -> io::Result<u64> {
    let stat = rustix::fs::statat(root, dir::file_name(base, index), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_growth_is_counted_across_files_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let grown = |place: Place| place.until_end(dir.path(), "web.stdout").unwrap();
        let start = Place::end(dir.path(), "web.stdout").unwrap();
        assert_eq!((start, grown(start)), (Place::default(), Some((start, 0))));
        put("web.stdout.0", "abc");
        let place = Place::end(dir.path(), "web.stdout").unwrap();
        assert_eq!(place, Place { index: 0, size: 3 });
        put("web.stdout.0", "abcdef");
        put("web.stdout.1", "gh");
        put("web.stderr.7", "no part of it");
        let end = Place { index: 1, size: 2 };
        assert_eq!((grown(start), grown(place)), (Some((end, 8)), Some((end, 5))));
        // Purged, shortened, with a gap, packed: it cannot be determined.
        assert_eq!(grown(Place { index: 0, size: 7 }), None);
        put("web.stdout.3", "x");
        assert_eq!(grown(place), None);
        std::fs::remove_file(dir.path().join("web.stdout.3")).unwrap();
        std::fs::rename(dir.path().join("web.stdout.0"), dir.path().join("web.stdout-0.zst")).unwrap();
        assert_eq!((grown(place), grown(end)), (None, Some((end, 0))));
        std::fs::remove_file(dir.path().join("web.stdout-0.zst")).unwrap();
        assert_eq!(grown(place), None);
    }
}
