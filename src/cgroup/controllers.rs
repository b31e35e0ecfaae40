//! The controllers of one cgroup, with the writers of cgroups-rs. Never finds a cgroup, and never converts a value from one regime
//! to the other.
//!
//! The controllers of the crate take any directory, so they also work below a delegated cgroup and on a test's plain files. Its
//! `Cgroup`, its `Resources` and its statistics are not used: docs/decisions/0053 says why, and the tests below show it.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::cpuset::CpuSetController;
use cgroups_rs::fs::error::{Error as CrateError, ErrorKind};
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;

use super::error::{Error, Result};
use super::fs::Dir;

type Written = cgroups_rs::fs::error::Result<()>;

/// A directory whose limits are written. `None` removes a limit.
pub(super) struct Controllers<'a> {
    dir: &'a Dir,
    v2: bool,
}

impl<'a> Controllers<'a> {
    pub(super) fn new(dir: &'a Dir, v2: bool) -> Controllers<'a> {
        Controllers { dir, v2 }
    }

    /// `cpu.shares` on v1, `cpu.weight` on v2; the crate writes the number as it is.
    pub(super) fn shares(&self, shares_or_weight: u64) -> Result<()> {
        let name = if self.v2 { "cpu.weight" } else { "cpu.shares" };
        self.write(name, &shares_or_weight, &|| self.cpu().set_shares(shares_or_weight))
    }

    /// At most `quota` microseconds of every `period`.
    pub(super) fn quota(&self, quota: Option<u64>, period: u64) -> Result<()> {
        let (cpu, quota) = (self.cpu(), limit(quota));
        if self.v2 {
            let both = || cpu.set_cfs_quota_and_period(Some(quota), Some(period));
            return self.write("cpu.max", &format_args!("{quota} {period}"), &both);
        }
        // Its function for both writes the quota first, which the kernel then compares with the old period.
        if quota >= 0 {
            self.write("cpu.cfs_period_us", &period, &|| cpu.set_cfs_period(period))?;
        }
        self.write("cpu.cfs_quota_us", &quota, &|| cpu.set_cfs_quota(quota))
    }

    /// The hard limit of memory.
    pub(super) fn memory(&self, bytes: Option<u64>) -> Result<()> {
        let name = if self.v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let bytes = limit(bytes);
        self.write(name, &bytes, &|| self.mem().set_limit(bytes))
    }

    /// v1: the limit of memory and swap together. v2: the limit of swap.
    pub(super) fn swap(&self, bytes: Option<u64>) -> Result<()> {
        let name = if self.v2 { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
        let bytes = limit(bytes);
        self.write(name, &bytes, &|| self.mem().set_memswap_limit(bytes))
    }

    /// v1: how willing the kernel is to swap, 0 to 100.
    pub(super) fn swappiness(&self, willingness: u64) -> Result<()> {
        self.write("memory.swappiness", &willingness, &|| self.mem().set_swappiness(willingness))
    }

    /// The memory that is reserved: the soft limit of v1, `memory.low` of v2.
    pub(super) fn reservation(&self, bytes: Option<u64>) -> Result<()> {
        let name = if self.v2 { "memory.low" } else { "memory.soft_limit_in_bytes" };
        // Where nothing is reserved v1 has no limit and v2 has 0; the crate would write -1 on both.
        let bytes = if self.v2 { limit(bytes).max(0) } else { limit(bytes) };
        self.write(name, &bytes, &|| self.mem().set_soft_limit(bytes))
    }

    /// The most processes and threads.
    pub(super) fn pids(&self, most: Option<u64>) -> Result<()> {
        let most = most.map_or(MaxValue::Max, |most| MaxValue::Value(limit(Some(most))));
        let pids = || PidController::new(self.path(), PathBuf::new(), self.v2);
        self.write("pids.max", &most, &|| pids().set_pid_max(most))
    }

    /// The cores, as a list of ranges.
    pub(super) fn cpuset(&self, cores: &str) -> Result<()> {
        let cpuset = || CpuSetController::new(self.path(), PathBuf::new(), self.v2);
        self.write("cpuset.cpus", &cores, &|| cpuset().set_cpus(cores))
    }

    fn cpu(&self) -> CpuController {
        CpuController::new(self.path(), PathBuf::new(), self.v2)
    }

    fn mem(&self) -> MemController {
        MemController::new(self.path(), PathBuf::new(), self.v2)
    }

    fn path(&self) -> PathBuf {
        self.dir.path.clone()
    }

    /// The crate opens a file with `O_CREAT`. Where there is none, cgroupfs then answers EACCES, as for one that may not be written,
    /// and a plain directory has one more file: so this looks first.
    fn write(&self, name: &str, value: &dyn Display, write: &dyn Fn() -> Written) -> Result<()> {
        self.dir.look_for(name)?;
        write().map_err(|error| {
            let path = self.dir.path.join(name);
            let source = errno(&error);
            match error.kind() {
                // Of some values it gives the debug form.
                ErrorKind::WriteFailed(_, told) if told != NOT_OPENED => {
                    Error::Write { value: value.to_string(), path, source }
                }
                ErrorKind::WriteFailed(..) => Error::Io { doing: "open", path, source },
                // It reads `cpu.max` before it writes it.
                _ => Error::Io { doing: "read", path, source },
            }
        })
    }
}

/// What the crate gives for the value if it could not open the file.
const NOT_OPENED: &str = "[CREATE FILE]";

/// The crate's numbers are signed; the kernel takes the largest one for no limit, as it does larger ones.
fn limit(value: Option<u64>) -> i64 {
    value.map_or(-1, |value| value.try_into().unwrap_or(i64::MAX))
}

/// What the kernel said.
fn errno(error: &CrateError) -> io::Error {
    let cause = std::error::Error::source(error);
    let number = cause.and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    number.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use cgroups_rs::fs::blkio::BlkIoController;
    use cgroups_rs::fs::hierarchies::{UNIFIED_MOUNTPOINT, V2};
    use cgroups_rs::fs::{Controller as _, Hierarchy as _, MemoryResources, Resources};

    use super::*;
    use crate::cgroup::CgroupFs;

    /// A directory `t` of plain files.
    fn plain(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("t")).unwrap();
        for (name, text) in files {
            fs::write(root.path().join("t").join(name), text).unwrap();
        }
        root
    }

    fn dir(root: &Path) -> Dir {
        CgroupFs::v2(root).unwrap().trees()[0].dir(Path::new("t")).unwrap()
    }

    /// What the kernel says reaches whoever decides by it, with the file and the value.
    #[test]
    fn c2_a_refused_limit_is_told_with_its_number() {
        let root = plain(&[("cpu.max", "no period")]);
        let path = root.path().join("t");
        std::os::unix::fs::symlink("/dev/full", path.join("pids.max")).unwrap();
        fs::create_dir(path.join("memory.max")).unwrap();
        let dir = dir(root.path());
        let v2 = Controllers::new(&dir, true);

        let refused = v2.pids(Some(5)).unwrap_err();
        assert!(matches!(&refused, Error::Write { value, .. } if value == "5"), "{refused:?}");
        assert_eq!(refused.errno(), Some(libc::ENOSPC));
        assert!(refused.to_string().contains("t/pids.max"), "{refused}");
        let closed = v2.memory(Some(5)).unwrap_err();
        assert!(matches!(closed, Error::Io { doing: "open", .. }), "{closed:?}");
        assert_eq!(closed.errno(), Some(libc::EISDIR));
        let unread = v2.quota(Some(5), 10).unwrap_err();
        assert!(matches!(unread, Error::Io { doing: "read", .. }), "{unread:?}");
        let missing = v2.shares(5).unwrap_err();
        assert!(missing.is_gone() && !path.join("cpu.weight").exists(), "{missing:?}");
    }

    /// Why its limits as one value are not used: memory's are written without a look at the result.
    #[test]
    fn the_crate_does_not_tell_of_a_memory_limit_that_was_refused() {
        let root = plain(&[]);
        let path = root.path().join("t");
        fs::create_dir(path.join("memory.max")).unwrap();
        let memory = MemoryResources { memory_hard_limit: Some(4096), ..MemoryResources::default() };
        let limits = Resources { memory, ..Resources::default() };
        assert!(MemController::new(path, PathBuf::new(), true).apply(&limits).is_ok());
    }

    /// Why its statistics are not used: what cannot be read is 0, also where the cgroup is gone or no descriptor is left.
    #[test]
    fn the_crate_takes_what_it_cannot_read_for_zero() {
        for v2 in [false, true] {
            let gone = || PathBuf::from("/no/such/cgroup");
            let memory = MemController::new(gone(), PathBuf::new(), v2).memory_stat();
            assert_eq!((memory.usage_in_bytes, memory.stat.total_rss), (0, 0));
            assert_eq!(CpuController::new(gone(), PathBuf::new(), v2).cpu().stat, "");
        }
    }

    /// Why a limit on disks, and what they do, is left to `io.rs`.
    #[test]
    fn the_crate_reads_no_statistics_of_disks_on_v2() {
        let line = "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n";
        let root = plain(&[("io.stat", line)]);
        let stat = BlkIoController::new(root.path().join("t"), PathBuf::new(), true).blkio().io_stat;
        assert_eq!(stat.iter().map(|disk| (disk.major, disk.rbytes, disk.wios)).collect::<Vec<_>>(), [(8, 0, 0)]);
        fs::write(root.path().join("t/io.stat"), line.replace("8:0", "259:65536")).unwrap();
        let path = root.path().join("t");
        let read = std::thread::spawn(move || BlkIoController::new(path, PathBuf::new(), true).blkio().io_stat.len());
        assert!(read.join().is_err(), "a minor number of more than 15 bits is an end of the process");
    }

    /// Why its hierarchies are not used: there is one root, and a file that is missing is made.
    #[test]
    fn the_crate_knows_one_root_and_makes_what_is_missing() {
        assert_eq!((V2::new().root(), UNIFIED_MOUNTPOINT), (PathBuf::from("/sys/fs/cgroup"), "/sys/fs/cgroup"));
        let root = plain(&[]);
        let path = root.path().join("t");
        PidController::new(path.clone(), PathBuf::new(), true).set_pid_max(MaxValue::Max).unwrap();
        assert!(path.join("pids.max").exists());
    }

    /// Why shares are converted, and a reservation is taken back, before the crate is asked.
    #[test]
    fn the_crate_writes_numbers_of_v1_on_v2() {
        let root = plain(&[("cpu.weight", ""), ("memory.low", "")]);
        let path = root.path().join("t");
        CpuController::new(path.clone(), PathBuf::new(), true).set_shares(1024).unwrap();
        MemController::new(path.clone(), PathBuf::new(), true).set_soft_limit(-1).unwrap();
        let text = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!((text("cpu.weight"), text("memory.low")), ("1024".to_owned(), "-1".to_owned()));
    }
}
