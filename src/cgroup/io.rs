//! Limits a task's disk I/O.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use super::error::{Error, Result};
use super::fs::Dir;
use crate::spec::IoLimit;

/// The v1 files, in the order of [`values`].
const V1_FILES: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];
/// The v2 keys, in the same order.
const V2_KEYS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];
const V2_FILE: &str = "io.max";

fn values(limit: &IoLimit) -> [Option<u64>; 4] {
    [limit.read_bps, limit.write_bps, limit.read_iops, limit.write_iops]
}

/// `major:minor` of a disk.
fn number(limit: &IoLimit) -> Result<String> {
    let refused = |problem: String| Error::Disk { path: limit.device.clone(), problem };
    let metadata = limit.device.metadata().map_err(|e| refused(e.to_string()))?;
    if !metadata.file_type().is_block_device() {
        return Err(refused("it is not a block device".to_owned()));
    }
    Ok(format!("{}:{}", rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())))
}

/// Explains the kernel's error for a partition, or for a disk without a queue.
fn whole_disk(limit: &IoLimit, result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.errno() == Some(libc::ENODEV) => {
            let problem = "the kernel limits whole disks only, not partitions".to_owned();
            Err(Error::Disk { path: limit.device.clone(), problem })
        }
        result => result,
    }
}

/// Disks that are limited, `major:minor`, and are not in `kept`.
fn others(dir: &Dir, file: &str, kept: &[String]) -> Result<Vec<String>> {
    let text = dir.read_if_there(file)?.unwrap_or_default();
    let disks = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(disks.filter(|disk| !kept.iter().any(|k| k == disk)).map(str::to_owned).collect())
}

/// The four files of the blkio controller.
pub(super) fn v1(dir: &Dir, limits: &[IoLimit], lift: bool) -> Result<()> {
    let numbers = limits.iter().map(number).collect::<Result<Vec<_>>>()?;
    for (index, file) in V1_FILES.into_iter().enumerate() {
        let mut kept = Vec::new();
        for (limit, disk) in limits.iter().zip(&numbers) {
            let Some(value) = values(limit)[index] else { continue };
            kept.push(disk.clone());
            // The kernel keeps the lower 32 bits of a number of operations; if these were 0, no operation would be allowed.
            let most = if file.contains("iops") { u64::from(u32::MAX) } else { u64::MAX };
            whole_disk(limit, dir.write(file, &format!("{disk} {}", value.min(most))))?;
        }
        for disk in if lift { others(dir, file, &kept)? } else { Vec::new() } {
            dir.write(file, &format!("{disk} 0"))?;
        }
    }
    Ok(())
}

/// One line per disk, all four values in it.
pub(super) fn v2(dir: &Dir, limits: &[IoLimit], lift: bool) -> Result<()> {
    if !limits.is_empty() && dir.read_if_there(V2_FILE)?.is_none() {
        return Err(Error::NoController("io".to_owned()));
    }
    let mut kept = Vec::new();
    for limit in limits {
        let disk = number(limit)?;
        whole_disk(limit, dir.write(V2_FILE, &line(&disk, values(limit))))?;
        kept.push(disk);
    }
    for disk in if lift { others(dir, V2_FILE, &kept)? } else { Vec::new() } {
        dir.write(V2_FILE, &line(&disk, [None; 4]))?;
    }
    Ok(())
}

fn line(disk: &str, values: [Option<u64>; 4]) -> String {
    let pairs = V2_KEYS.iter().zip(values);
    let text = |value: Option<u64>| value.map_or_else(|| "max".to_owned(), |value| value.to_string());
    std::iter::once(disk.to_owned()).chain(pairs.map(|(key, value)| format!(" {key}={}", text(value)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n6_disks_are_block_devices() {
        for (path, why) in [("/no/such/disk", "No such file"), ("/dev/null", "not a block device")] {
            let error = number(&IoLimit { device: path.into(), ..IoLimit::default() }).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(why), "{error}");
        }
        let all = line("8:0", [Some(1), None, Some(3), None]);
        assert_eq!(all, "8:0 rbps=1 wbps=max riops=3 wiops=max");
    }
}
