//! The Go program with the real encoders (`tests/interop/golden`).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds it for the test program `name`; `None` where there is no Go, after a line that says so.
pub fn build(name: &str) -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: {name}: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    // One file per test program: they may run at the same time.
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-golden-{name}"));
    let go =
        Command::new("go").args(["build", "-o"]).arg(&binary).arg("./golden").current_dir(module).output().unwrap();
    assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
    Some(binary)
}

/// Runs it; panics with what it says when it fails.
pub fn ask(binary: &Path, mode: &str, input: &str) -> String {
    let mut command = Command::new(binary);
    command.arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A program that does not read its input closes it.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "golden {mode}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|n| char::from_digit(n.into(), 16).unwrap()).collect()
}

pub fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}
