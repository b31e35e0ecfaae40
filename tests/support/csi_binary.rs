//! The CSI driver of `tests/csi`, built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The driver, built once, or the one that `AGENTBIN_TEST_CSI` names; `None` where there is no Go.
pub fn binary(test: &str) -> Option<&'static Path> {
    static BINARY: OnceLock<Option<(Option<tempfile::TempDir>, PathBuf)>> = OnceLock::new();
    let built = BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("AGENTBIN_TEST_CSI") {
            return Some((None, given.into()));
        }
        Command::new("go").arg("version").output().ok()?;
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("driver");
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/csi");
        let go = Command::new("go")
            .args(["build", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .output()
            .unwrap();
        assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
        Some((Some(dir), binary))
    });
    if built.is_none() {
        assert!(std::env::var_os("CI").is_none(), "needs Go");
        println!("SKIP: {test}: needs Go");
    }
    built.as_ref().map(|(_, binary)| &**binary)
}
