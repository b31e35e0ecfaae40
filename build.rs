//! Generates the gRPC code from `proto/` without a `protoc`, and puts the binary's customary path in place.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    generate(&["nomad/hclspec.proto", "nomad/structs.proto"], &[])?;
    generate(&["nomad/base.proto", "nomad/driver.proto"], &["hclspec", "structs"])?;
    generate(&["nomad/executor.proto"], &["hclspec", "structs", "drivers"])?;
    generate(&["goplugin/plugin.proto", "nomad/logmon.proto", "nomad/docker_logger.proto"], &[])?;
    // Relocations in a tenth of the space. A linker that does not know the word says so and goes on.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    link_customary_path();
    Ok(())
}

/// Generates the packages of `files`. Those that they import were generated before and are named by their module in `wire`.
fn generate(files: &[&str], imports: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let mut descriptors = protox::compile(files, ["proto"])?;
    // A service of an import would be generated again, and its file would replace the whole package.
    let imported = |name: Option<&str>| name.is_none_or(|n| !files.contains(&n));
    descriptors.file.iter_mut().filter(|f| imported(f.name.as_deref())).for_each(|f| f.service.clear());
    let mut prost = tonic_prost_build::configure();
    for import in imports {
        let package = match *import {
            "drivers" => "drivers.proto".to_owned(),
            shared => format!("shared.{shared}"),
        };
        prost = prost.extern_path(format!(".hashicorp.nomad.plugins.{package}"), format!("crate::wire::{import}"));
    }
    Ok(prost.compile_fds(descriptors)?)
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
