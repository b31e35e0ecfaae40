//! Host users and groups that tasks must not run as.

use super::DriverError;
use super::config::Reader;
use super::failed;
use crate::container::host_user;
use crate::sys::mutant;

/// The plugin's `denied_host_uids` and `denied_host_gids`: lists of numbers and ranges such as `0-99,1000`.
#[derive(Debug, Clone, Default)]
pub(super) struct DeniedIds {
    users: Vec<(u32, u32)>,
    groups: Vec<(u32, u32)>,
}

impl DeniedIds {
    pub(super) fn read(reader: &Reader<'_>) -> Result<DeniedIds, DriverError> {
        // Hosts look for this wording.
        let ranges = |key: &str, kind: &str| {
            let text = reader.string(key)?.unwrap_or_default();
            ranges(&text).map_err(|problem| reader.error(key, &format!("{key}: invalid range {kind} {problem}")))
        };
        Ok(DeniedIds {
            users: ranges("denied_host_uids", "deniedHostUIDs")?,
            groups: ranges("denied_host_gids", "deniedHostGIDs")?,
        })
    }

    /// Whether any id is denied. Then users are looked up on the host only: a passwd file that comes with the job is not
    /// trusted.
    pub(super) fn is_any(&self) -> bool {
        !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Refuses a task's user by its uid or by the gid of one of its groups. An empty name is the user of this process.
    pub(super) fn check(&self, user: &str) -> Result<(), DriverError> {
        if !self.is_any() || mutant::on("c04") {
            return Ok(());
        }
        let (uid, gids) = if user.is_empty() {
            let mut gids = vec![rustix::process::getegid().as_raw()];
            gids.extend(rustix::process::getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()));
            (rustix::process::geteuid().as_raw(), gids)
        } else {
            // The executor uses the same lookup.
            let ids = host_user(user)
                .ok_or_else(|| failed(format!("failed to identify user {user:?}: unknown user {user}"), false))?;
            (ids.uid, ids.groups)
        };
        let denied = |ranges: &[(u32, u32)], id: u32| ranges.iter().any(|(low, high)| (*low..=*high).contains(&id));
        if denied(&self.users, uid) {
            return Err(failed(format!("running as uid {uid} is disallowed"), false));
        }
        match gids.iter().find(|gid| denied(&self.groups, **gid)) {
            Some(gid) => Err(failed(format!("running as gid {gid} is disallowed"), false)),
            None => Ok(()),
        }
    }
}

/// An error begins with the element of the list that is wrong.
fn ranges(text: &str) -> Result<Vec<(u32, u32)>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let bound = |text: &str| text.parse::<u32>().map_err(|_| "range bound not valid");
    let range = |part: &str| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (bound(low)?, bound(high)?);
        if low > high { Err("lower bound cannot be greater than upper bound") } else { Ok((low, high)) }
    };
    text.split(',').map(|part| range(part).map_err(|problem| format!("{part:?}: {problem}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DriverConfig;

    /// `Test_ValidateBounds`, `TestDriver_Config_setDeniedIds`.
    #[test]
    fn ranges_are_read_or_refused() {
        assert_eq!(ranges(""), Ok(vec![]));
        assert_eq!(ranges("0"), Ok(vec![(0, 0)]));
        assert_eq!(ranges("1-100,200"), Ok(vec![(1, 100), (200, 200)]));
        assert!(ranges("10-1").unwrap_err().contains("lower bound cannot be greater than upper bound"));
        let config = |value: &str| DriverConfig {
            values: [("denied_host_uids".to_owned(), value.into())].into_iter().collect(),
            ..DriverConfig::default()
        };
        let read = |config: &DriverConfig| DeniedIds::read(&Reader::any("raw_exec", config)).map_err(|e| e.to_string());
        let text = "invalid range deniedHostUIDs \"100-1\": lower bound cannot be greater than upper bound";
        assert!(read(&config("7,100-1")).unwrap_err().ends_with(text));
        for bad in ["x", "1-x", "-1", "1-2-3", "4294967296", " 1", "1 ", "1- 2", " "] {
            assert_eq!(ranges(bad), Err(format!("{bad:?}: range bound not valid")));
        }
        // An empty element is a mistake, where it is.
        for bad in ["1-100,,200", "1-100,", ","] {
            assert_eq!(ranges(bad), Err("\"\": range bound not valid".to_owned()), "{bad}");
        }
        assert_eq!(ranges("1-100, 200,x"), Err("\" 200\": range bound not valid".to_owned()));
    }

    /// A denied group 0 refuses its members, and no other users.
    #[test]
    fn users_and_their_groups_are_checked() {
        let denied =
            |users: &str, groups: &str| DeniedIds { users: ranges(users).unwrap(), groups: ranges(groups).unwrap() };
        let error = |ids: &DeniedIds, user: &str| ids.check(user).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(error(&denied("", ""), "nobody-of-that-name"), "");
        assert_eq!(error(&denied("0", ""), "root"), "running as uid 0 is disallowed");
        assert_eq!(error(&denied("", "0"), "root"), "running as gid 0 is disallowed");
        assert_eq!(error(&denied("0", "0"), "nobody"), "");
        assert!(error(&denied("1-5", ""), "nobody-of-that-name").contains("unknown user"));
    }
}
