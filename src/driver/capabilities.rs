//! Which capabilities a task gets.

use super::DriverError;
use super::config::Reader;

/// What a plugin allows unless its operator says otherwise: Nomad's thirteen.
const ALLOWED: [&str; 13] = [
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

/// Allowed, but only given when asked for: with it a task that is root could make the node of any disk.
const NOT_BY_DEFAULT: &str = "MKNOD";

/// `cap_add` and `cap_drop` to the list of `CAP_` names. A task that is not root begins with none, root with the
/// allowed ones; `cap_add` wins over `cap_drop`.
pub(super) fn resolve(reader: &Reader<'_>, root: bool) -> Result<Vec<String>, DriverError> {
    let add = names(&reader.strings("cap_add")?);
    let drop = names(&reader.strings("cap_drop")?);
    let refused: Vec<String> =
        add.iter().filter(|name| !ALLOWED.contains(&name.as_str())).map(|name| name.to_lowercase()).collect();
    if !refused.is_empty() {
        let text = format!("driver does not allow the following capabilities: {}", refused.join(", "));
        return Err(reader.error("cap_add", &text));
    }
    let basis = ALLOWED.iter().filter(|name| root && **name != NOT_BY_DEFAULT).map(|name| (*name).to_owned());
    let mut result: Vec<String> = basis.filter(|name| !drop.contains(name)).chain(add).collect();
    result.sort_unstable();
    result.dedup();
    Ok(result.into_iter().map(|name| format!("CAP_{name}")).collect())
}

/// Upper case, without prefix, `all` spelled out.
fn names(given: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for name in given {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if bare == "ALL" {
            names.extend(ALLOWED.map(str::to_owned));
        } else {
            names.push(bare.to_owned());
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DriverConfig;

    fn resolved(add: &[&str], drop: &[&str], root: bool) -> Result<Vec<String>, String> {
        let mut config = DriverConfig::default();
        config.values.insert("cap_add".into(), add.into());
        config.values.insert("cap_drop".into(), drop.into());
        let reader = Reader::new("exec", &config, &["cap_add", "cap_drop"]).unwrap();
        resolve(&reader, root).map_err(|e| e.to_string())
    }

    /// B3: nobody has nothing unless the job adds it; root keeps the allowed ones but for mknod.
    #[test]
    fn capabilities_are_added_and_dropped() {
        assert_eq!(resolved(&[], &[], false), Ok(vec![]));
        assert_eq!(resolved(&["net_bind_service"], &["all"], false), Ok(vec!["CAP_NET_BIND_SERVICE".into()]));
        assert_eq!(resolved(&["CAP_kill", "kill"], &[], false), Ok(vec!["CAP_KILL".into()]));
        assert_eq!(resolved(&[], &[], true).unwrap().len(), 12);
        assert_eq!(resolved(&["mknod"], &["ALL"], true), Ok(vec!["CAP_MKNOD".into()]));
        let refused = resolved(&["net_admin", "mknod", "CAP_SYS_TIME"], &[], false).unwrap_err();
        assert!(
            refused.ends_with("driver does not allow the following capabilities: net_admin, sys_time"),
            "{refused}"
        );
    }
}
