//! Users as the host knows them, for code that starts a task; never called in a task's root.

use super::config::Ids;
use super::identity::lookup_user;
use crate::names;

/// The user as the host knows it, from its files or from the other databases that `getent` asks, which may be slow; `None` for an
/// empty name.
#[must_use]
pub fn host_user(name: &str) -> Option<Ids> {
    if name.is_empty() {
        return None;
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    lookup_user(&read("/etc/passwd"), &read("/etc/group"), name).or_else(|| {
        let (passwd, group) = names::ask_host(name).ok()?;
        lookup_user(&passwd, &group, name)
    })
}
