//! Whether a secret of a test is anywhere that others could read.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What every secret of the tests has in it.
pub const SECRET: &str = "s3cret-of-a-volume";

/// Longest file that is read.
const LONGEST: u64 = 64 << 20;

/// What `--secret` of the driver asks for, without telling it.
pub fn asked(key: &str, value: &str) -> String {
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(value);
    hash.iter().fold(format!("{key}=sha256:"), |text, byte| text + &format!("{byte:02x}"))
}

fn has(bytes: &[u8], secret: &str) -> bool {
    memchr::memmem::find(bytes, secret.as_bytes()).is_some()
}

/// Looks at the arguments, environments and names of all processes of the machine, and in directories, until it is ended.
pub struct Watch {
    secret: &'static str,
    dirs: Vec<PathBuf>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeSet<String>>>,
}

impl Watch {
    pub fn start(dirs: &[&Path]) -> Watch {
        Watch::for_secret(SECRET, dirs)
    }

    pub fn for_secret(secret: &'static str, dirs: &[&Path]) -> Watch {
        let dirs: Vec<PathBuf> = dirs.iter().map(|&dir| dir.to_owned()).collect();
        let ends = Arc::<AtomicBool>::default();
        let thread = std::thread::spawn({
            let (dirs, ends) = (dirs.clone(), Arc::clone(&ends));
            move || {
                let mut found = BTreeSet::new();
                for round in 0_u32.. {
                    in_processes(secret, &mut found);
                    // What is deleted later was there.
                    if round.is_multiple_of(20) {
                        for dir in &dirs {
                            in_files(dir, secret, true, &mut found);
                        }
                    }
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "what processes show is looked at until the test ends"
                    )]
                    std::thread::sleep(Duration::from_millis(50));
                }
                found
            }
        });
        Watch { secret, dirs, ends, thread: Some(thread) }
    }

    /// Where a secret was or is.
    pub fn end(&mut self) -> BTreeSet<String> {
        self.ends.store(true, Ordering::Relaxed);
        let mut found = self.thread.take().map(|thread| thread.join().unwrap()).unwrap_or_default();
        for dir in &self.dirs {
            in_files(dir, self.secret, true, &mut found);
        }
        found
    }
}

fn in_processes(secret: &str, found: &mut BTreeSet<String>) {
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        for file in ["cmdline", "environ", "comm"] {
            // It may have ended meanwhile.
            let text = std::fs::read(process.path().join(file)).unwrap_or_default();
            if has(&text, secret) {
                found.insert(format!("{file} of a process: {}", String::from_utf8_lossy(&text)));
            }
        }
    }
}

/// Names and contents below `dir`, but at its top what the test itself wrote, job and volume files, and the storage of its driver.
fn in_files(dir: &Path, secret: &str, is_top: bool, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if has(entry.file_name().as_bytes(), secret) {
            found.insert(format!("a name: {}", path.display()));
        }
        if kind.is_dir() && !(is_top && entry.file_name() == "state") {
            in_files(&path, secret, false, found);
        }
        let is_of_test = is_top && path.extension().is_some_and(|end| end == "hcl");
        let is_short = entry.metadata().is_ok_and(|metadata| metadata.len() <= LONGEST);
        // No FIFO and no device.
        if kind.is_file() && is_short && !is_of_test && std::fs::read(&path).is_ok_and(|text| has(&text, secret)) {
            found.insert(path.display().to_string());
        }
    }
}
