//! The default image for the containers that hold a group's network, used when the operator names none: a program of a few
//! machine instructions that waits forever. Nothing is downloaded for it.

use std::fmt::Write as _;
use std::io::Write as _;

use sha2::{Digest as _, Sha256};

use crate::docker::Engine;
use crate::driver::DriverError;
use crate::driver::failed;
use crate::spec::json::json;

/// The tag has to change when the program changes.
pub(super) const IMAGE: &str = "agentbin-pause:1";
/// Path of the program in the image.
const PROGRAM: &str = "pause";
/// A block of a tar archive.
const BLOCK: usize = 512;

/// The id of the image, which is loaded if the engine does not have it.
pub(super) async fn image(engine: &Engine) -> Result<String, DriverError> {
    let look = async || engine.image(IMAGE).await.map_err(|e| super::image::unknown(&e));
    if let Some(id) = look().await? {
        return Ok(id);
    }
    let problem = |e: String| failed(format!("cannot load the image {IMAGE}: {e}"), true);
    let file = || {
        let file = rustix::fs::memfd_create(IMAGE, rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        file.write_all(&archive())?;
        std::io::Seek::rewind(&mut file)?;
        Ok(file)
    };
    let file = file().map_err(|e: std::io::Error| problem(e.to_string()))?;
    engine.load(file).await.map_err(|e| problem(e.to_string()))?;
    look().await?.ok_or_else(|| problem("the engine has taken it and does not know it".to_owned()))
}

/// The archive that `docker save` would write for it.
fn archive() -> Vec<u8> {
    let layer = tar(&[(PROGRAM, 0o755, &program())]);
    let mut digest = String::new();
    for byte in Sha256::digest(&layer) {
        let _ = write!(digest, "{byte:02x}");
    }
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Entrypoint": [format!("/{PROGRAM}")] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
        "history": [{ "created_by": env!("CARGO_PKG_NAME") }],
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"] }]);
    tar(&[
        ("layer.tar", 0o644, &layer),
        ("config.json", 0o644, config.to_string().as_bytes()),
        ("manifest.json", 0o644, manifest.to_string().as_bytes()),
    ])
}

/// An archive of plain files: `ustar` of POSIX.
fn tar(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, mode, content) in files {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000000000");
        // While the checksum is computed, its own field is filled with blanks.
        put(148, "        ");
        put(156, "0");
        put(257, "ustar");
        put(263, "00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// An ELF file of one segment: `elf(5)`.
fn program() -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    const BASE: u64 = 0x0040_0000;
    // EM_X86_64: pause() again and again.
    const X86_64: (u16, &[u8]) = (62, &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]);
    // EM_AARCH64, which has no pause(): ppoll(0, 0, 0, 0) again and again.
    const AARCH64: (u16, &[u8]) = (
        183,
        &[
            0x00, 0x00, 0x80, 0xd2, // mov x0, #0
            0x01, 0x00, 0x80, 0xd2, // mov x1, #0
            0x02, 0x00, 0x80, 0xd2, // mov x2, #0
            0x03, 0x00, 0x80, 0xd2, // mov x3, #0
            0x28, 0x09, 0x80, 0xd2, // mov x8, #73
            0x01, 0x00, 0x00, 0xd4, // svc #0
            0xfa, 0xff, 0xff, 0x17, // b, six back
        ],
    );
    let (machine, code) = if cfg!(target_arch = "aarch64") { AARCH64 } else { X86_64 };
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |out: &mut Vec<u8>, value: u16| out.extend(value.to_le_bytes());
    let word = |out: &mut Vec<u8>, value: u32| out.extend(value.to_le_bytes());
    let long = |out: &mut Vec<u8>, value: u64| out.extend(value.to_le_bytes());
    half(&mut out, 2); // ET_EXEC
    half(&mut out, machine);
    word(&mut out, 1); // EV_CURRENT
    long(&mut out, BASE + HEADERS); // entry
    long(&mut out, 64); // program headers
    long(&mut out, 0); // no sections
    word(&mut out, 0); // flags
    for size in [64, 56, 1, 0, 0, 0] {
        half(&mut out, size);
    }
    let length = HEADERS + code.len() as u64;
    word(&mut out, 1); // PT_LOAD
    word(&mut out, 5); // readable, executable
    for value in [0, BASE, BASE, length, length, 0x1_0000] {
        long(&mut out, value);
    }
    out.extend_from_slice(code);
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_program_runs_until_it_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        // Not written by this process: a child that another test forks meanwhile would hold it open for writing, and executing
        // it would fail.
        let (text, path) = (dir.path().join("text"), dir.path().join(PROGRAM));
        std::fs::write(&text, program()).unwrap();
        std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").args([&text, &path]).status().unwrap().success());
        let mut child = Command::new(&path).env_clear().spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        // Sleeping: it waits and does not spin.
        while !std::fs::read_to_string(&stat).unwrap().contains(" S ") {
            assert!(child.try_wait().unwrap().is_none() && std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn the_archives_are_read_by_tar() {
        let dir = tempfile::tempdir().unwrap();
        let tar = |args: &[&str]| {
            let out = Command::new("tar").args(args).current_dir(dir.path()).output().unwrap();
            assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
            String::from_utf8(out.stdout).unwrap()
        };
        std::fs::write(dir.path().join("image.tar"), archive()).unwrap();
        assert_eq!(tar(&["xvf", "image.tar"]), "layer.tar\nconfig.json\nmanifest.json\n");
        tar(&["xf", "layer.tar"]);
        let file = std::fs::metadata(dir.path().join(PROGRAM)).unwrap();
        assert_eq!((file.len(), file.permissions().mode() & 0o777), (program().len() as u64, 0o755));
    }
}
