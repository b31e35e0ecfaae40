//! Task keys that restrict a task whether it is isolated or not.

use super::DriverError;
use super::config::Reader;
use crate::spec::{IoLimit, LaunchSpec, LimitedResource, ResourceLimit};
use crate::wire::hclspec::Spec;
use crate::wire::schema;

/// The keys.
pub(super) const TASK_KEYS: [&str; 4] = ["pids_limit", "ulimit", "io", "no_new_privs"];
const IO_KEYS: [&str; 5] = ["device", "read_bps", "write_bps", "read_iops", "write_iops"];

/// Their schema.
pub(super) fn task_schema() -> [(&'static str, Spec); 4] {
    let io = schema::object(IO_KEYS.map(|name| {
        let device = name == "device";
        (name, schema::attr(name, if device { "string" } else { "number" }, device))
    }));
    [
        ("pids_limit", schema::attr("pids_limit", "number", false)),
        ("ulimit", schema::block_attrs("ulimit", "string", false)),
        ("io", schema::block_list("io", 0, 0, io)),
        ("no_new_privs", schema::attr("no_new_privs", "bool", false)),
    ]
}

/// Their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Restrictions {
    /// 0 means no limit.
    pub pids_max: Option<u64>,
    pub limits: Vec<ResourceLimit>,
    pub io: Vec<IoLimit>,
    pub no_new_privs: Option<bool>,
}

impl Restrictions {
    /// Reads them.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn read(reader: &Reader<'_>) -> Result<Restrictions, DriverError> {
        Ok(Restrictions {
            pids_max: pids_limit(reader)?,
            limits: limits(reader)?,
            io: reader.blocks("io")?.iter().map(|block| io(reader, block)).collect::<Result<_, _>>()?,
            no_new_privs: reader.flag("no_new_privs")?,
        })
    }

    /// Applies them to `spec`; values that are not set limit nothing.
    pub fn apply(self, spec: &mut LaunchSpec) {
        spec.resources.pids_max = self.pids_max.filter(|most| *most > 0);
        spec.resources.io = self.io;
        spec.limits = self.limits;
        spec.no_new_privs = self.no_new_privs.unwrap_or(false);
    }
}

/// A limit of processes; 0 means none.
///
/// # Errors
/// [`DriverError::Config`].
pub(super) fn pids_limit(reader: &Reader<'_>) -> Result<Option<u64>, DriverError> {
    let negative = || reader.error("pids_limit", "pids_limit must not be negative; 0 limits nothing");
    reader.integer("pids_limit")?.map(|limit| u64::try_from(limit).map_err(|_| negative())).transpose()
}

fn limits(reader: &Reader<'_>) -> Result<Vec<ResourceLimit>, DriverError> {
    let mut limits: Vec<ResourceLimit> = Vec::new();
    for (name, value) in reader.pairs("ulimit")? {
        let resource = LimitedResource::from_name(&name).ok_or_else(|| {
            let known = LimitedResource::ALL.map(LimitedResource::name).join(", ");
            reader.error("ulimit", &format!("ulimit {name:?} is not known; known are {known}"))
        })?;
        let limit = ResourceLimit::parse(resource, &value).ok_or_else(|| {
            let text = format!("ulimit {name} must be \"soft\" or \"soft:hard\", numbers or unlimited, got {value:?}");
            reader.error("ulimit", &text)
        })?;
        if limit.is_upside_down() {
            let text = format!("ulimit {name} = {value:?}: the soft limit must not be above the hard one");
            return Err(reader.error("ulimit", &text));
        }
        if limits.iter().any(|other| other.resource == resource) {
            return Err(reader.error("ulimit", &format!("ulimit {} is there twice", resource.name())));
        }
        limits.push(limit);
    }
    Ok(limits)
}

fn io(outer: &Reader<'_>, block: &crate::spec::DriverConfig) -> Result<IoLimit, DriverError> {
    let reader = Reader::new(outer.driver(), block, &IO_KEYS)?;
    let device = reader.string("device")?.unwrap_or_default();
    if !device.starts_with('/') {
        let text = format!("io needs the absolute path of a disk as device, got {device:?}");
        return Err(reader.error("device", &text));
    }
    let limit = IoLimit {
        device: device.into(),
        read_bps: reader.limit("read_bps")?,
        write_bps: reader.limit("write_bps")?,
        read_iops: reader.limit("read_iops")?,
        write_iops: reader.limit("write_iops")?,
    };
    if limit == (IoLimit { device: limit.device.clone(), ..IoLimit::default() }) {
        let text =
            format!("io for {} limits nothing; give it one of {}", limit.device.display(), IO_KEYS[1..].join(", "));
        return Err(reader.error("device", &text));
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::convert;
    use crate::driver::hclspec::{Body, Schema};
    use crate::spec::DriverConfig;

    fn read(values: &serde_json::Value) -> Result<Restrictions, String> {
        let config = DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() };
        Restrictions::read(&Reader::any("exec", &config)).map_err(|e| e.to_string())
    }

    #[test]
    fn n6_restrictions_are_read() {
        assert_eq!(read(&json!({})), Ok(Restrictions::default()));
        let both = read(&json!({
            "pids_limit": 9,
            "ulimit": [{ "nofile": "10:20", "CORE": -1, "nproc": 7 }],
            "io": [{ "device": "/dev/a", "read_bps": 5 }, { "device": "/dev/b", "write_iops": "6" }],
            "no_new_privs": true,
        }));
        let limit = |resource, soft, hard| ResourceLimit { resource, soft, hard };
        let expected = Restrictions {
            pids_max: Some(9),
            limits: vec![
                limit(LimitedResource::Nofile, Some(10), Some(20)),
                limit(LimitedResource::Core, None, None),
                limit(LimitedResource::Nproc, Some(7), Some(7)),
            ],
            io: vec![
                IoLimit { device: "/dev/a".into(), read_bps: Some(5), ..IoLimit::default() },
                IoLimit { device: "/dev/b".into(), write_iops: Some(6), ..IoLimit::default() },
            ],
            no_new_privs: Some(true),
        };
        assert_eq!(both, Ok(expected));
        assert_eq!(read(&json!({ "pids_limit": 0 })).unwrap().pids_max, Some(0));
        assert_eq!(read(&json!({ "io": { "device": "/dev/a", "read_iops": 1 } })).unwrap().io.len(), 1);
    }

    /// As an agent sends them: through the schema and its codec.
    #[test]
    fn n6_restrictions_pass_an_agent() {
        let schema = Schema::new(&schema::object(task_schema())).unwrap();
        let read = |text: &str| {
            let body = Body::parse(std::path::Path::new("x.hcl"), text).unwrap();
            let bytes = schema.encode(&body, &serde_json::Map::new()).unwrap();
            Restrictions::read(&Reader::any("exec", &convert::config(&bytes).unwrap())).unwrap()
        };
        assert_eq!(read(""), Restrictions::default());
        let read = read(
            "pids_limit = 0\nno_new_privs = false\nulimit {\n nofile = 10\n core = \"1:2\"\n}\n\
             io {\n device = \"/dev/a\"\n read_bps = 5\n}\nio {\n device = \"/dev/b\"\n write_iops = 6\n}\n",
        );
        let limit = |resource, soft, hard| ResourceLimit { resource, soft: Some(soft), hard: Some(hard) };
        assert_eq!((read.pids_max, read.no_new_privs), (Some(0), Some(false)));
        assert_eq!(read.limits, [limit(LimitedResource::Core, 1, 2), limit(LimitedResource::Nofile, 10, 10)]);
        assert_eq!(read.io.len(), 2);
        assert_eq!((read.io[0].read_bps, read.io[0].write_bps, read.io[1].write_iops), (Some(5), None, Some(6)));
    }

    #[test]
    fn n6_what_makes_no_sense_is_refused() {
        for (values, why) in [
            (json!({ "pids_limit": -1 }), "pids_limit must not be negative"),
            (json!({ "ulimit": { "files": "1" } }), "ulimit \"files\" is not known; known are as, core"),
            (json!({ "ulimit": { "nofile": "many" } }), "ulimit nofile must be \"soft\" or \"soft:hard\""),
            (json!({ "ulimit": { "nofile": "2:1" } }), "must not be above"),
            (json!({ "ulimit": { "nofile": "2", "RLIMIT_NOFILE": "1" } }), "ulimit nofile is there twice"),
            (json!({ "ulimit": "1" }), "ulimit must be a map of strings"),
            (json!({ "io": { "device": "sda", "read_bps": 1 } }), "absolute path of a disk"),
            (json!({ "io": { "device": "/dev/a" } }), "io for /dev/a limits nothing"),
            (json!({ "io": { "device": "/dev/a", "read_bps": 0 } }), "read_bps must be at least 1"),
            (json!({ "io": { "device": "/dev/a", "reads": 1 } }), "unsupported key \"reads\""),
            (json!({ "io": 3 }), "io must be blocks"),
            (json!({ "no_new_privs": 1 }), "no_new_privs must be true or false"),
        ] {
            let error = read(&values).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
