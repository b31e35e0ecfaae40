//! Devices that an agent passes outside of the configuration: a job requests them, and the operator's device plugin provides
//! them.

use std::path::{Component, Path};

use super::{By, Minimum, Policy, demand, shorten};
use crate::driver::DriverError;
use crate::driver::config::Reader;
use crate::driver::glob::matches;
use crate::spec::Device;
use crate::sys::mutant;
use crate::wire::hclspec::Spec;
use crate::wire::schema;

/// Name of the plugin's key.
pub const KEY: &str = "allow_devices";

/// Its schema.
pub fn schema() -> (&'static str, Spec) {
    (KEY, schema::attr(KEY, "list(string)", false))
}

/// Patterns for paths of host devices that tasks may get, with `*` for any text; `None` if the operator does not set the key.
///
/// # Errors
/// [`DriverError::Config`]: an entry that is not an absolute path.
pub fn read(reader: &Reader<'_>) -> Result<Option<Vec<String>>, DriverError> {
    let globs = reader.strings(KEY)?;
    if let Some(glob) = globs.iter().find(|glob| !glob.starts_with('/')) {
        let text = format!("{KEY} lists absolute paths of devices, such as \"/dev/nvidia*\"; got {glob:?}");
        return Err(reader.error(KEY, &text));
    }
    Ok(reader.has(KEY).then_some(globs))
}

/// Whether the pattern matches a host path, lexically; a path with `..` never matches.
fn is_meant(glob: &str, path: &Path) -> bool {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    plain && path.to_str().is_some_and(|path| matches(glob, path))
}

impl Policy {
    /// Refuses devices that the operator's list does not contain. Without a list, tasks at `default` get the devices of the
    /// operator's device plugins, as they get the operator's volumes; a strict task, which shares nothing with other tasks,
    /// gets none.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub(in crate::driver) fn check_devices(
        &self,
        driver: &'static str,
        devices: &[Device],
        by: By,
    ) -> Result<(), DriverError> {
        if mutant::on("d90") {
            return Ok(());
        }
        let instead = format!("remove the job's device block, or have the operator list it in {KEY}");
        for path in devices.iter().map(|device| device.host_path.as_path()) {
            let shown = shorten(&format!("{:?}", path.display().to_string()));
            let why = match (&self.allow_devices, self.minimum) {
                (Some(globs), _) if globs.iter().any(|glob| is_meant(glob, path)) => continue,
                (Some(_), _) => format!("is not listed in {KEY} of plugin {driver:?}; {instead}"),
                (None, Some(minimum @ Minimum::Strict)) => {
                    format!("is looser than {} allows; {instead}", demand(minimum, driver, by))
                }
                (None, _) => continue,
            };
            return Err(DriverError::Config(format!("task of driver {driver}: device {shown} {why}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::DriverConfig;

    /// D90: whether a task gets a device, by the operator's list and minimum.
    #[test]
    fn d90_devices_are_given_where_the_operator_says_so() {
        let globs = |globs: &[&str]| Some(globs.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>());
        let refusal = |allow_devices: Option<Vec<String>>, minimum, path: &str| {
            let policy = Policy { minimum, allow_devices, ..Policy::default() };
            let device = Device { task_path: "/dev/x".into(), host_path: path.into(), cgroup_permissions: "r".into() };
            let checked = policy.check_devices("exec", &[device], By::Plugin);
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let (default, strict) = (Some(Minimum::Default), Some(Minimum::Strict));
        for (list, minimum, path, why) in [
            (None, None, "/dev/sda", ""),
            (None, default, "/dev/sda", ""),
            (
                None,
                strict,
                "/dev/sda",
                "device \"/dev/sda\" is looser than isolation_minimum = \"strict\" of plugin \"exec\"",
            ),
            (globs(&["/dev/nvidia*"]), strict, "/dev/nvidia0", ""),
            (
                globs(&["/dev/nvidia*"]),
                default,
                "/dev/sda",
                "is not listed in allow_devices of plugin \"exec\"; remove",
            ),
            (globs(&["/dev/nvidia*"]), None, "/dev/sda", "is not listed in allow_devices"),
            (globs(&["/dev/nvidia*"]), strict, "/dev/nvidia/../sda", "is not listed"),
            (globs(&["/dev/sda"]), None, "/dev/sda1", "is not listed"),
            (globs(&[]), None, "/dev/null", "is not listed"),
        ] {
            let text = refusal(list.clone(), minimum, path);
            assert!(text.contains(why) && text.is_empty() == why.is_empty(), "{list:?} {minimum:?} {path}: {text}");
        }
        let text = refusal(None, strict, &format!("/dev/\u{1b}{}", "x".repeat(999)));
        assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text}");
        let list = |value| {
            let config =
                DriverConfig { values: [(KEY.to_owned(), value)].into_iter().collect(), ..DriverConfig::default() };
            read(&Reader::any("exec", &config)).map_err(|e| e.to_string())
        };
        assert_eq!((list(json!(null)), list(json!([]))), (Ok(None), Ok(Some(vec![]))));
        assert!(list(json!(["nvidia0"])).unwrap_err().contains("lists absolute paths of devices"));
    }
}
