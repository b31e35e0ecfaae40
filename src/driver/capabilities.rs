//! Which capabilities a task gets.

use super::DriverError;
use super::config::Reader;
use crate::sys::mutant;
use crate::wire::schema::Literal;

/// Every Linux capability, in the order of their numbers.
const ALL: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// How many of them, counted from the first, root has under Nomad's own drivers.
const LEGACY_ROOT: usize = 38;

/// The default of `allow_caps`: Nomad's thirteen.
const DEFAULTS: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The default capabilities of Docker's engine are Nomad's thirteen and this one.
const DOCKER_BESIDES: &str = "NET_RAW";

/// Allowed, but given only when the job asks for them: with them a root task could create a device node for any disk, or set-id
/// files in directories that it shares with others, which make root of every user who executes them.
const NOT_BY_DEFAULT: [&str; 3] = ["MKNOD", "FSETID", "SETFCAP"];

/// Nomad's default of `allow_caps`.
pub(super) fn nomad_defaults() -> Literal {
    let names = DEFAULTS.map(str::to_lowercase);
    Literal::strings(&names.each_ref().map(String::as_str))
}

/// The plugin's `allow_caps`.
#[derive(Debug, Clone)]
pub(super) struct Allowed(Vec<String>);

impl Default for Allowed {
    fn default() -> Allowed {
        Allowed(DEFAULTS.map(str::to_owned).to_vec())
    }
}

impl Allowed {
    pub(super) fn read(reader: &Reader<'_>) -> Result<Allowed, DriverError> {
        let names = names(reader, "allow_caps")?;
        Ok(if reader.has("allow_caps") { Allowed(names) } else { Allowed::default() })
    }

    /// Resolves `cap_add` and `cap_drop` to a list of `CAP_` names; `cap_add` wins over `cap_drop`. A non-root task starts
    /// with no capabilities, a root task with the allowed defaults except `NOT_BY_DEFAULT`; with `as_nomad` every task starts
    /// with the allowed ones, and root with Nomad's list for root.
    pub(super) fn resolve(&self, reader: &Reader<'_>, as_nomad: bool, root: bool) -> Result<Vec<String>, DriverError> {
        let (add, drop) = (names(reader, "cap_add")?, names(reader, "cap_drop")?);
        self.check(reader, &add)?;
        let named = |names: Vec<String>| names.into_iter().map(|name| format!("CAP_{name}")).collect();
        if as_nomad && root {
            return Ok(named(ALL[..LEGACY_ROOT].iter().map(|name| (*name).to_owned()).collect()));
        }
        let basis = DEFAULTS
            .iter()
            .map(|name| (*name).to_owned())
            .filter(|name| self.0.contains(name) && !drop.contains(name) && (as_nomad || (root && !is_withheld(name))));
        let mut result: Vec<String> = basis.chain(add.iter().cloned()).collect();
        result.sort();
        result.dedup();
        Ok(named(result))
    }

    /// What the engine has to add to its default set and to drop from it. `all` is passed on as one word, as an engine may not
    /// know every name.
    pub(super) fn beside_docker(&self, reader: &Reader<'_>) -> Result<(Vec<String>, Vec<String>), DriverError> {
        let (add, mut drop) = (names(reader, "cap_add")?, names(reader, "cap_drop")?);
        self.check(reader, &add)?;
        let given = DEFAULTS.into_iter().chain([DOCKER_BESIDES]).map(str::to_owned);
        drop.extend(given.filter(|name| !self.0.contains(name)));
        drop.sort();
        drop.dedup();
        let named = |names: Vec<String>| match names.len() {
            all if all == ALL.len() => vec!["ALL".to_owned()],
            _ => names.into_iter().map(|name| format!("CAP_{name}")).collect(),
        };
        Ok((named(add), named(drop)))
    }

    fn check(&self, reader: &Reader<'_>, add: &[String]) -> Result<(), DriverError> {
        let refused: Vec<String> =
            add.iter().filter(|name| !self.0.contains(name)).map(|name| name.to_lowercase()).collect();
        if refused.is_empty() {
            return Ok(());
        }
        let text = format!("driver does not allow the following capabilities: {}", refused.join(", "));
        Err(reader.error("cap_add", &text))
    }
}

fn is_withheld(name: &str) -> bool {
    let withheld = &NOT_BY_DEFAULT[..if mutant::on("d11-caps") { 1 } else { NOT_BY_DEFAULT.len() }];
    withheld.contains(&name)
}

/// A name in upper case, without blanks around it and the `CAP_` prefix. An empty one names nothing.
pub(super) fn bare(name: &str) -> String {
    let upper = name.trim().to_ascii_uppercase();
    upper.strip_prefix("CAP_").map_or_else(|| upper.clone(), str::to_owned)
}

/// [`bare`] names, `all` expanded, sorted.
fn names(reader: &Reader<'_>, key: &str) -> Result<Vec<String>, DriverError> {
    let mut names = Vec::new();
    for name in reader.strings(key)? {
        let bare = bare(&name);
        if bare == "ALL" {
            names.extend(ALL.map(str::to_owned));
        } else if !bare.is_empty() {
            names.push(bare);
        }
    }
    names.sort();
    names.dedup();
    let unknown: Vec<String> =
        names.iter().filter(|name| !ALL.contains(&name.as_str())).map(|name| name.to_lowercase()).collect();
    if unknown.is_empty() {
        return Ok(names);
    }
    Err(reader
        .error(key, &format!("{key} configured with capabilities not supported by system: {}", unknown.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DriverConfig;

    fn resolved(allow: Option<&[&str]>, add: &[&str], drop: &[&str], root: bool) -> Result<Vec<String>, String> {
        let mut config = DriverConfig::default();
        config.values.insert("cap_add".into(), add.into());
        config.values.insert("cap_drop".into(), drop.into());
        if let Some(allow) = allow {
            config.values.insert("allow_caps".into(), allow.into());
        }
        let reader = Reader::any("exec", &config);
        let allowed = Allowed::read(&reader).map_err(|e| e.to_string())?;
        allowed.resolve(&reader, false, root).map_err(|e| e.to_string())
    }

    /// B3, D11: a non-root task has no capabilities unless the job adds them; root keeps the allowed ones except mknod, fsetid
    /// and setfcap.
    #[test]
    fn capabilities_are_added_and_dropped() {
        assert_eq!(resolved(None, &[], &[], false), Ok(vec![]));
        assert_eq!(resolved(None, &["net_bind_service"], &["all"], false), Ok(vec!["CAP_NET_BIND_SERVICE".into()]));
        assert_eq!(resolved(None, &["CAP_kill", "kill"], &[], false), Ok(vec!["CAP_KILL".into()]));
        assert_eq!(resolved(None, &[], &[], true).unwrap().len(), 10);
        let asked = resolved(None, &["fsetid", "cap_setfcap"], &[], true).unwrap();
        assert!(asked.len() == 12 && asked.contains(&"CAP_FSETID".into()) && asked.contains(&"CAP_SETFCAP".into()));
        assert_eq!(resolved(None, &["mknod"], &["ALL"], true), Ok(vec!["CAP_MKNOD".into()]));
        // As Nomad's drivers read names.
        assert_eq!(resolved(None, &["", " ", "cap_"], &[""], false), Ok(vec![]));
        assert_eq!(resolved(None, &[" kill\t"], &[" all "], true), Ok(vec!["CAP_KILL".into()]));
        let unknown = resolved(None, &["fly"], &[], false).unwrap_err();
        assert!(unknown.ends_with("cap_add configured with capabilities not supported by system: fly"), "{unknown}");
    }

    /// `TestExecDriver_Capabilities`: what a plugin allows.
    #[test]
    fn plugins_allow_capabilities() {
        let pair: Option<&[&str]> = Some(&["FOWNER", "MKNOD"]);
        for (allow, add, drop, refused) in [
            (None, &["fowner", "mknod"][..], &["ALL"][..], ""),
            (None, &["net_admin"], &[], "net_admin"),
            (None, &[], &["FOWNER", "MKNOD", "NET_RAW"], ""),
            (pair, &[], &["ALL"], ""),
            (pair, &["fowner", "mknod"], &[], ""),
            (pair, &["net_admin"], &[], "net_admin"),
            (pair, &["net_admin", "mknod", "CAP_SYS_TIME"], &[], "net_admin, sys_time"),
            (Some(&["ALL"]), &["net_admin", "mknod"], &[], ""),
            (Some(&["all"]), &["all"], &[], ""),
        ] {
            match resolved(allow, add, drop, false) {
                Ok(_) => assert_eq!(refused, "", "{add:?}"),
                Err(text) => {
                    let wanted = format!("driver does not allow the following capabilities: {refused}");
                    assert!(!refused.is_empty() && text.ends_with(&wanted), "{text}");
                }
            }
        }
        for none in [&[] as &[&str], &[""]] {
            assert_eq!(resolved(Some(none), &[], &[], true), Ok(vec![]), "nothing is allowed");
        }
    }

    /// Nomad's own behaviour, bit by bit: `TestExecutor_Capabilities` gives 00000000a80405fb and 0000003fffffffff.
    #[test]
    fn nomads_own_lists() {
        let bits = |root, drop: &[&str]| {
            let mut config = DriverConfig::default();
            config.values.insert("cap_drop".into(), drop.into());
            let names = Allowed::default().resolve(&Reader::any("exec", &config), true, root).unwrap();
            let number = |name: &String| ALL.iter().position(|n| name.strip_prefix("CAP_") == Some(n)).unwrap();
            names.iter().map(|name| 1_u64 << number(name)).sum::<u64>()
        };
        assert_eq!(bits(false, &[]), 0xa804_05fb);
        assert_eq!(bits(true, &["all"]), 0x3f_ffff_ffff);
        assert_eq!(bits(false, &["all"]), 0);
    }
}
