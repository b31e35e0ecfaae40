//! A task's limits: which file of which controller gets which value in the two regimes.

use super::controllers::Controllers;
use super::error::{Error, Result};
use super::fs::Dir;
use super::io;
use super::member::TaskCgroup;
use super::regime::Regime;
use crate::spec::{MOST_CPU_SHARES, Resources, cpu_weight_from_shares};

/// The range of `cpu.shares` (sched/core.c, `MIN_SHARES` and `MAX_SHARES`).
const SHARES: (u64, u64) = (2, MOST_CPU_SHARES);
/// The default of a cgroup.
const DEFAULT_SHARES: u64 = 1024;
/// The default of a cgroup, in microseconds.
const DEFAULT_PERIOD: u64 = 100_000;
/// The most processes and threads that a kernel can have (threads.h, `PID_MAX_LIMIT`); `pids.max` accepts no higher number.
const MOST_PIDS: u64 = 1 << 22;

/// Writes the limits into the directories that are ours. `lift` also removes limits that `resources` does not set, which a new
/// cgroup does not need.
pub(super) fn write(task: &TaskCgroup, resources: &Resources, lift: bool) -> Result<()> {
    if task.is_host_given() {
        return Ok(());
    }
    match task.regime {
        Regime::V1 => v1(task, resources, lift),
        Regime::V2 => v2(&task.members[0].dir()?, resources, lift),
        Regime::Off => Err(Error::Off),
    }
}

fn v1(task: &TaskCgroup, resources: &Resources, lift: bool) -> Result<()> {
    let dir = |controller: &str| {
        let member = task.member(controller).ok_or_else(|| Error::NoController(controller.to_owned()))?;
        member.dir()
    };
    let has = |controller: &str| task.member(controller).is_some();
    if resources.cpu_shares > 0 || resources.cpu_quota_us.is_some() || (lift && has("cpu")) {
        let dir = dir("cpu")?;
        let cpu = Controllers::new(&dir, false);
        if resources.cpu_shares > 0 {
            cpu.shares(resources.cpu_shares.clamp(SHARES.0, SHARES.1))?;
        } else if lift {
            cpu.shares(DEFAULT_SHARES)?;
        }
        if let Some((quota, period)) = resources.cpu_quota_us {
            require("cpu", if_there(cpu.quota(Some(quota), period))?)?;
        } else if lift {
            if_there(cpu.quota(None, DEFAULT_PERIOD))?;
        }
    }
    let memory = resources.memory;
    if memory.hard_bytes.is_some() || memory.soft_bytes.is_some() || (lift && has("memory")) {
        v1_memory(&Controllers::new(&dir("memory")?, false), resources, lift)?;
    }
    if let Some(most) = resources.pids_max {
        if has("pids") || !resources.pids_max_is_a_wish {
            Controllers::new(&dir("pids")?, false).pids(pids(most))?;
        }
    } else if lift && has("pids") {
        Controllers::new(&dir("pids")?, false).pids(None)?;
    }
    if !resources.io.is_empty() || (lift && has("blkio")) {
        io::v1(&dir("blkio")?, &resources.io, lift)?;
    }
    // A cpuset given by the host has had its cores since the cgroup was made.
    if !resources.cpuset_cpus.is_empty() && task.member("cpuset").is_none_or(|m| m.ours) {
        Controllers::new(&dir("cpuset")?, false).cpuset(&resources.cpuset_cpus)?;
    }
    Ok(())
}

fn v1_memory(memory: &Controllers<'_>, resources: &Resources, lift: bool) -> Result<()> {
    let hard = resources.memory.hard_bytes;
    if hard.is_some() {
        // The memory limit may never exceed the limit of memory with swap: which of the two is written first depends on their
        // current values.
        match memory.memory(hard) {
            Err(e) if e.errno() == Some(libc::EINVAL) => {
                if_there(memory.swap(hard))?;
                memory.memory(hard)?;
            }
            result => {
                result?;
                if_there(memory.swap(hard))?;
            }
        }
        // Some kernels refuse this, and it is unnecessary where the swap limit above could be set.
        let _best_effort = memory.swappiness(0);
    } else if lift {
        if_there(memory.swap(None))?;
        memory.memory(None)?;
    }
    match resources.memory.soft_bytes {
        None if !lift => Ok(()),
        soft => reserve(memory, soft),
    }
}

/// A reservation is best effort: kernels built without it (`PREEMPT_RT`) still run the task.
fn reserve(memory: &Controllers<'_>, bytes: Option<u64>) -> Result<()> {
    match if_there(memory.reservation(bytes)) {
        Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result.map(drop),
    }
}

/// Any number for more than there can be.
fn pids(most: u64) -> Option<u64> {
    (most <= MOST_PIDS).then_some(most)
}

/// False where this kernel or this cgroup has no such file.
fn if_there(written: Result<()>) -> Result<bool> {
    match written {
        Err(e) if e.is_gone() => Ok(false),
        result => result.map(|()| true),
    }
}

fn require(controller: &str, there: bool) -> Result<()> {
    if there { Ok(()) } else { Err(Error::NoController(controller.to_owned())) }
}

fn v2(dir: &Dir, resources: &Resources, lift: bool) -> Result<()> {
    let write = Controllers::new(dir, true);
    let memory = resources.memory;
    if memory.hard_bytes.is_some() {
        require("memory", if_there(write.memory(memory.hard_bytes))?)?;
        if_there(write.swap(Some(0)))?;
    } else if lift {
        if_there(write.memory(None))?;
        if_there(write.swap(None))?;
    }
    if memory.soft_bytes.is_some() {
        require("memory", if_there(write.reservation(memory.soft_bytes))?)?;
    } else if lift {
        if_there(write.reservation(None))?;
    }
    if resources.cpu_shares > 0 {
        let weight = cpu_weight_from_shares(resources.cpu_shares.clamp(SHARES.0, SHARES.1));
        require("cpu", if_there(write.shares(weight))?)?;
    } else if lift {
        if_there(write.shares(cpu_weight_from_shares(DEFAULT_SHARES)))?;
    }
    if let Some((quota, period)) = resources.cpu_quota_us {
        require("cpu", if_there(write.quota(Some(quota), period))?)?;
    } else if lift {
        if_there(write.quota(None, DEFAULT_PERIOD))?;
    }
    if let Some(most) = resources.pids_max {
        let there = if_there(write.pids(pids(most)))?;
        require("pids", there || resources.pids_max_is_a_wish)?;
    } else if lift {
        if_there(write.pids(None))?;
    }
    io::v2(dir, &resources.io, lift)?;
    if !resources.cpuset_cpus.is_empty() {
        require("cpuset", if_there(write.cpuset(&resources.cpuset_cpus))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use crate::cgroup::{CgroupFs, Hierarchy, Mounts};
    use crate::spec::collections::BTreeMap;
    use crate::spec::{IoLimit, MemoryLimits};

    const V1: [(&str, &[&str]); 5] = [
        ("cpu", &["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"]),
        (
            "memory",
            &[
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                "memory.soft_limit_in_bytes",
                "memory.swappiness",
            ],
        ),
        ("pids", &["pids.max"]),
        ("cpuset", &["cpuset.cpus"]),
        (
            "blkio",
            &[
                "blkio.throttle.read_bps_device",
                "blkio.throttle.write_bps_device",
                "blkio.throttle.read_iops_device",
                "blkio.throttle.write_iops_device",
            ],
        ),
    ];
    const V2: [&str; 8] =
        ["cpu.weight", "cpu.max", "memory.max", "memory.low", "memory.swap.max", "pids.max", "cpuset.cpus", "io.max"];
    /// The content of the files before the first write.
    const UNTOUCHED: &str = "untouched";
    /// The content of `cpu.max`, which is read before it is written.
    const UNTOUCHED_MAX: &str = "max 1";

    type Files = BTreeMap<String, String>;

    /// Trees of plain files.
    struct Plain {
        dir: tempfile::TempDir,
        task: TaskCgroup,
    }

    impl Plain {
        fn v1(without: &[&str]) -> Plain {
            let dir = tempfile::tempdir().unwrap();
            let mut hierarchies = Vec::new();
            for (controller, files) in V1.iter().filter(|(controller, _)| !without.contains(controller)) {
                let mount_point = dir.path().join(controller);
                fill(&mount_point.join("t"), files.iter().filter(|file| !without.contains(file)));
                hierarchies.push(Hierarchy { controllers: vec![(*controller).to_owned()], mount_point });
            }
            let fs = CgroupFs::open(Mounts { regime: Regime::V1, hierarchies, beside: None }).unwrap();
            Plain { task: TaskCgroup::open(&fs, Path::new("t")).unwrap(), dir }
        }

        fn v2(without: &[&str]) -> Plain {
            let dir = tempfile::tempdir().unwrap();
            fill(&dir.path().join("t"), V2.iter().filter(|file| !without.contains(file)));
            let fs = CgroupFs::v2(dir.path()).unwrap();
            Plain { task: TaskCgroup::open(&fs, Path::new("t")).unwrap(), dir }
        }

        /// The files that were written, by name.
        fn written(&self) -> Files {
            let folders = V1.map(|(controller, _)| self.dir.path().join(controller).join("t"));
            let folders = folders.into_iter().chain([self.dir.path().join("t")]);
            let files = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
            let read = files.map(|file| {
                let text = std::fs::read_to_string(file.path()).unwrap();
                (file.file_name().into_string().unwrap(), text)
            });
            read.filter(|(_, text)| text != UNTOUCHED && text != UNTOUCHED_MAX && !text.is_empty()).collect()
        }
    }

    fn fill<'a>(folder: &Path, files: impl Iterator<Item = &'a &'a str>) {
        std::fs::create_dir_all(folder).unwrap();
        for file in files {
            // The current limits of disks are read before they are removed.
            let text = match *file {
                "cpu.max" => UNTOUCHED_MAX,
                "io.max" => "",
                file if file.contains("device") => "",
                _ => UNTOUCHED,
            };
            std::fs::write(folder.join(file), text).unwrap();
        }
    }

    /// Parses `file=text; file=text`.
    fn files(expected: &str) -> Files {
        let pairs = expected.split("; ").filter_map(|pair| pair.split_once('='));
        pairs.map(|(file, text)| (file.to_owned(), text.to_owned())).collect()
    }

    fn shares(cpu_shares: u64) -> Resources {
        Resources { cpu_shares, ..Resources::default() }
    }

    fn quota(quota: u64, period: u64) -> Resources {
        Resources { cpu_quota_us: Some((quota, period)), ..Resources::default() }
    }

    fn memory(hard_bytes: Option<u64>, soft_bytes: Option<u64>) -> Resources {
        Resources { memory: MemoryLimits { hard_bytes, soft_bytes }, ..Resources::default() }
    }

    fn pids(most: u64) -> Resources {
        Resources { pids_max: Some(most), ..Resources::default() }
    }

    fn cpuset(cores: &str) -> Resources {
        Resources { cpuset_cpus: cores.to_owned(), ..Resources::default() }
    }

    /// A disk 7:77, which need not exist on this machine.
    fn disk(dir: &Path, [read_bps, write_bps, read_iops, write_iops]: [Option<u64>; 4]) -> Option<Resources> {
        let device = dir.join("disk");
        if !device.exists() {
            let made = rustix::fs::mknodat(CWD, &device, FileType::BlockDevice, Mode::RUSR, rustix::fs::makedev(7, 77));
            if made.is_err() {
                println!("SKIP: limits of disks: a node cannot be made here");
                return None;
            }
        }
        let io = vec![IoLimit { device, read_bps, write_bps, read_iops, write_iops }];
        Some(Resources { io, ..Resources::default() })
    }

    /// The files that are written for each request in a new cgroup, and no others.
    #[test]
    fn c2_limits_as_v1_and_v2_want_them_written() {
        let max = u64::MAX;
        let dir = tempfile::tempdir().unwrap();
        let mut rows = vec![
            (Resources::default(), "", ""),
            (shares(0), "", ""),
            (shares(1), "cpu.shares=2", "cpu.weight=1"),
            (shares(2), "cpu.shares=2", "cpu.weight=1"),
            (shares(3), "cpu.shares=3", "cpu.weight=2"),
            (shares(100), "cpu.shares=100", "cpu.weight=17"),
            (shares(1000), "cpu.shares=1000", "cpu.weight=99"),
            (shares(1024), "cpu.shares=1024", "cpu.weight=100"),
            (shares(65_536), "cpu.shares=65536", "cpu.weight=3023"),
            (shares(262_143), "cpu.shares=262143", "cpu.weight=10000"),
            (shares(262_144), "cpu.shares=262144", "cpu.weight=10000"),
            (shares(262_145), "cpu.shares=262144", "cpu.weight=10000"),
            (shares(max), "cpu.shares=262144", "cpu.weight=10000"),
            (quota(1, 1), "cpu.cfs_period_us=1; cpu.cfs_quota_us=1", "cpu.max=1 1"),
            (quota(50_000, 100_000), "cpu.cfs_period_us=100000; cpu.cfs_quota_us=50000", "cpu.max=50000 100000"),
            (
                quota(max, 2),
                "cpu.cfs_period_us=2; cpu.cfs_quota_us=9223372036854775807",
                "cpu.max=9223372036854775807 2",
            ),
            (memory(None, None), "", ""),
            (
                memory(Some(1), None),
                "memory.limit_in_bytes=1; memory.memsw.limit_in_bytes=1; memory.swappiness=0",
                "memory.max=1; memory.swap.max=0",
            ),
            (
                memory(Some(8 << 20), Some(4 << 20)),
                "memory.limit_in_bytes=8388608; memory.memsw.limit_in_bytes=8388608; memory.swappiness=0; \
                 memory.soft_limit_in_bytes=4194304",
                "memory.max=8388608; memory.swap.max=0; memory.low=4194304",
            ),
            // memory_max = -1
            (memory(None, Some(4 << 20)), "memory.soft_limit_in_bytes=4194304", "memory.low=4194304"),
            (
                memory(Some(max), Some(max)),
                "memory.limit_in_bytes=9223372036854775807; memory.memsw.limit_in_bytes=9223372036854775807; \
                 memory.swappiness=0; memory.soft_limit_in_bytes=9223372036854775807",
                "memory.max=9223372036854775807; memory.swap.max=0; memory.low=9223372036854775807",
            ),
            (pids(0), "pids.max=0", "pids.max=0"),
            (pids(1), "pids.max=1", "pids.max=1"),
            (pids(4096), "pids.max=4096", "pids.max=4096"),
            (pids(4_194_304), "pids.max=4194304", "pids.max=4194304"),
            // The kernel refuses values above the possible maximum.
            (pids(4_194_305), "pids.max=max", "pids.max=max"),
            (pids(max), "pids.max=max", "pids.max=max"),
            (cpuset(""), "", ""),
            (cpuset("0"), "cpuset.cpus=0", "cpuset.cpus=0"),
            (cpuset("0-1,3"), "cpuset.cpus=0-1,3", "cpuset.cpus=0-1,3"),
        ];
        let disks = [
            (
                [Some(1), Some(2), Some(3), Some(4)],
                "blkio.throttle.read_bps_device=7:77 1; blkio.throttle.write_bps_device=7:77 2; \
                 blkio.throttle.read_iops_device=7:77 3; blkio.throttle.write_iops_device=7:77 4",
                "io.max=7:77 rbps=1 wbps=2 riops=3 wiops=4",
            ),
            (
                [None, Some(max), None, None],
                "blkio.throttle.write_bps_device=7:77 18446744073709551615",
                "io.max=7:77 rbps=max wbps=18446744073709551615 riops=max wiops=max",
            ),
            // v1 keeps 32 bits of these.
            (
                [None, None, Some(u64::from(u32::MAX)), Some(1 << 32)],
                "blkio.throttle.read_iops_device=7:77 4294967295; blkio.throttle.write_iops_device=7:77 4294967295",
                "io.max=7:77 rbps=max wbps=max riops=4294967295 wiops=4294967296",
            ),
        ];
        rows.extend(disks.iter().filter_map(|(values, v1, v2)| Some((disk(dir.path(), *values)?, *v1, *v2))));
        for (resources, v1, v2) in rows {
            for (plain, expected) in [(Plain::v1(&[]), v1), (Plain::v2(&[]), v2)] {
                write(&plain.task, &resources, false).unwrap();
                assert_eq!(plain.written(), files(expected), "{:?}: {resources:?}", plain.task.regime);
            }
        }
    }

    /// In a cgroup that had limits: those that are not requested are removed.
    #[test]
    fn c2_limits_as_v1_and_v2_want_them_lifted() {
        let v1 = "cpu.shares=1024; cpu.cfs_quota_us=-1; memory.limit_in_bytes=-1; memory.memsw.limit_in_bytes=-1; \
                  memory.soft_limit_in_bytes=-1; pids.max=max; blkio.throttle.write_iops_device=7:1 0";
        let v2 = "cpu.weight=100; cpu.max=max 100000; memory.max=max; memory.swap.max=max; memory.low=0; pids.max=max; \
                  io.max=7:1 rbps=max wbps=max riops=max wiops=max";
        for (plain, disks, text, expected) in [
            (Plain::v1(&[]), "blkio/t/blkio.throttle.write_iops_device", "7:1 50\n", v1),
            (Plain::v2(&[]), "t/io.max", "7:1 rbps=max wbps=max riops=max wiops=50\n", v2),
        ] {
            std::fs::write(plain.dir.path().join(disks), text).unwrap();
            plain.task.set_limits(&Resources::default()).unwrap();
            assert_eq!(plain.written(), files(expected), "{:?}", plain.task.regime);
        }
        // Requested limits stay, and the others are removed.
        for (plain, expected) in [
            (
                Plain::v1(&[]),
                "cpu.shares=500; cpu.cfs_quota_us=-1; memory.limit_in_bytes=4096; memory.memsw.limit_in_bytes=4096; \
                 memory.swappiness=0; memory.soft_limit_in_bytes=-1; pids.max=max; cpuset.cpus=1",
            ),
            (
                Plain::v2(&[]),
                "cpu.weight=58; cpu.max=max 100000; memory.max=4096; memory.swap.max=0; memory.low=0; pids.max=max; cpuset.cpus=1",
            ),
        ] {
            plain
                .task
                .set_limits(&Resources { cpu_shares: 500, cpuset_cpus: "1".to_owned(), ..memory(Some(4096), None) })
                .unwrap();
            assert_eq!(plain.written(), files(expected), "{:?}", plain.task.regime);
        }
    }

    /// A limit that is not available is an error, except for one that is best effort or only exists on some kernels.
    #[test]
    fn c2_limits_without_their_controllers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let wish = Resources { pids_max_is_a_wish: true, ..pids(5) };
        let mut rows = vec![
            (shares(5), "cpu", "cpu.weight", Some("cpu")),
            (quota(5000, 10_000), "cpu", "cpu.max", Some("cpu")),
            (memory(Some(4096), None), "memory", "memory.max", Some("memory")),
            (pids(5), "pids", "pids.max", Some("pids")),
            (wish, "pids", "pids.max", None),
            (cpuset("0"), "cpuset", "cpuset.cpus", Some("cpuset")),
            (memory(Some(4096), None), "memory.memsw.limit_in_bytes", "memory.swap.max", None),
            (memory(Some(4096), None), "memory.swappiness", "", None),
            // PREEMPT_RT does not have it on v1.
            (memory(None, Some(4096)), "memory.soft_limit_in_bytes", "", None),
        ];
        rows.extend(disk(dir.path(), [Some(1); 4]).map(|resources| (resources, "blkio", "io.max", Some("io"))));
        for (resources, v1, v2, controller) in rows {
            for plain in [Plain::v1(&[v1]), Plain::v2(&[v2])] {
                let result = write(&plain.task, &resources, false);
                let refused = match &result {
                    Err(Error::NoController(name)) => Some(if name == "blkio" { "io" } else { name }),
                    result => {
                        assert!(result.is_ok(), "{:?}: {resources:?}: {result:?}", plain.task.regime);
                        None
                    }
                };
                assert_eq!(refused, controller, "{:?}: {resources:?}", plain.task.regime);
            }
        }
    }
}
