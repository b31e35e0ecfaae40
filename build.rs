//! Generates the gRPC code from `proto/` without a `protoc`, and puts the binary's customary path in place.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    // prost leaves a package out that it is told lies elsewhere, so the shared messages are generated on their own.
    let shared = protox::compile(["nomad/driver.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(shared)?;
    let services = ["goplugin/plugin.proto", "nomad/executor.proto", "nomad/logmon.proto"];
    tonic_prost_build::configure()
        .extern_path(".hashicorp.nomad.plugins.drivers.proto", "crate::wire::drivers")
        .compile_fds(protox::compile(services, ["proto"])?)?;
    link_customary_path();
    Ok(())
}

/// A build for a named target lands in `target/<triple>/<profile>`; people and scripts look in
/// `target/<profile>`. Best effort: a missing link costs nothing but a longer path.
fn link_customary_path() {
    let (Ok(out), Ok(triple)) = (std::env::var("OUT_DIR"), std::env::var("TARGET")) else { return };
    // <target>/<triple>/<profile>/build/agentbin-<hash>/out
    let Some(profile_dir) = Path::new(&out).ancestors().nth(3) else { return };
    let (Some(profile), Some(triple_dir)) = (profile_dir.file_name(), profile_dir.parent()) else { return };
    if triple_dir.file_name().is_none_or(|n| n != triple.as_str()) {
        return;
    }
    let Some(target) = triple_dir.parent() else { return };
    let link = target.join(profile).join("agentbin");
    let to = PathBuf::from("..").join(&triple).join(profile).join("agentbin");
    if link.symlink_metadata().is_err() {
        let _ = std::fs::create_dir_all(target.join(profile));
        let _ = std::os::unix::fs::symlink(to, link);
    }
}
