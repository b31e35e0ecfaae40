//! The users that the tasks of an allocation run as, as far as they are known before the start: which users must be let into its
//! directory, and which others write there.

use std::sync::Arc;

use tokio::sync::watch;

use super::Stop;
use super::artifact;
use super::dir::Owner;
use super::shared::stop_at_least;
use crate::driver::{Driver, FsIsolation};
use crate::spec::{DriverConfig, Neighbours};

/// The user of one task.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    driver: String,
    /// As named in the job.
    user: String,
    /// `None` if only the driver, or the task's root file system, knows.
    numbers: Option<Owner>,
    /// The task sees the host's files, so its user passes through the allocation's directory by its path.
    sees_host: bool,
    /// On the host the task has a uid of the allocation's own range, which all such tasks of the allocation share.
    own_ids: bool,
}

impl Runs {
    /// As [`Runs::of`], on a thread of its own: the host's user databases may be slow. An allocation that is being stopped does not
    /// wait for them, and starts no task.
    pub(super) async fn find(
        driver: &Arc<dyn Driver>,
        config: &DriverConfig,
        user: String,
        mut stop: watch::Receiver<Stop>,
    ) -> Runs {
        let name = driver.name().to_owned();
        let unknown = Runs { driver: name, user: user.clone(), numbers: None, sees_host: false, own_ids: false };
        let (driver, config) = (Arc::clone(driver), config.clone());
        let found = crate::sys::task::spawn_blocking(move || Runs::of(&*driver, &config, user));
        tokio::select! {
            biased;
            found = found => found.unwrap_or(unknown),
            () = stop_at_least(&mut stop, Stop::Gracefully) => unknown,
        }
    }

    /// The user of a task of this driver; `user` is interpolated, and empty for the driver's default.
    pub(super) fn of(driver: &dyn Driver, config: &DriverConfig, user: String) -> Runs {
        let isolation = driver.capabilities().fs_isolation;
        let sees_host = !matches!(isolation, FsIsolation::Image | FsIsolation::Chroot);
        let name = match (driver.name(), user.as_str()) {
            ("exec" | "java", "") => Some("nobody"),
            ("raw_exec", "") => Some("root"),
            // A user name in an image has the uid of the image.
            (_, named) if !named.is_empty() && (sees_host || matches!(driver.name(), "exec" | "java")) => Some(named),
            _ => None,
        };
        let numbers = name.and_then(|name| artifact::owner(name).ok());
        let own_ids = driver.has_own_ids(config);
        Runs { driver: driver.name().to_owned(), user, numbers, sees_host, own_ids }
    }

    /// The user that must be let into the allocation's directory so that this task can reach its files.
    pub(super) fn enters(&self) -> Option<Owner> {
        self.numbers.filter(|_| self.sees_host)
    }

    /// How the other tasks of the allocation relate to this one.
    pub(super) fn neighbours<'a>(&self, others: impl IntoIterator<Item = &'a Runs>) -> Neighbours {
        // Without root all tasks run as the same user of the machine, except those with subordinate ids.
        let is_root = rustix::process::geteuid().is_root();
        let others = others.into_iter().filter(|other| is_root || other.own_ids);
        others.map(|other| self.neighbour(other)).max().unwrap_or_default()
    }

    fn neighbour(&self, other: &Runs) -> Neighbours {
        let uid = |runs: &Runs| runs.numbers.map(|numbers| numbers.uid);
        // A uid in the allocation's own range differs from the same uid of the host.
        let same = self.own_ids == other.own_ids
            && (uid(other) == Some(0)
                || uid(other).is_some() && uid(other) == uid(self)
                || (&other.driver, &other.user) == (&self.driver, &self.user));
        match (same, other.sees_host) {
            (true, _) => Neighbours::None,
            (false, false) => Neighbours::Shared,
            (false, true) => Neighbours::Everywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(driver: &str, user: &str, uid: Option<u32>, sees_host: bool) -> Runs {
        let numbers = uid.map(|uid| Owner { uid, gid: uid });
        Runs { driver: driver.to_owned(), user: user.to_owned(), numbers, sees_host, own_ids: false }
    }

    #[test]
    fn neighbours_are_tasks_of_other_users() {
        let root = runs("raw_exec", "", Some(0), true);
        let plain = runs("raw_exec", "app", Some(7001), true);
        let jailed = runs("exec", "", Some(65534), false);
        let strict_root = Runs { own_ids: true, ..runs("exec", "root", Some(0), false) };
        let strict = Runs { own_ids: true, ..jailed.clone() };
        let image = runs("docker", "", None, false);
        let expected = |one: &Runs, others: &[&Runs]| one.neighbours(others.iter().copied());
        if !rustix::process::geteuid().is_root() {
            assert_eq!(expected(&root, &[&plain]), Neighbours::None);
            return;
        }
        for (one, others, neighbours) in [
            (&root, vec![], Neighbours::None),
            (&root, vec![&root], Neighbours::None),
            (&plain, vec![&root], Neighbours::None),
            (&plain, vec![&plain, &root], Neighbours::None),
            (&jailed, vec![&jailed], Neighbours::None),
            (&image, vec![&image], Neighbours::None),
            (&root, vec![&jailed], Neighbours::Shared),
            (&root, vec![&strict_root], Neighbours::Shared),
            (&jailed, vec![&strict], Neighbours::Shared),
            (&strict, vec![&strict_root, &strict], Neighbours::None),
            (&root, vec![&image], Neighbours::Shared),
            (&image, vec![&jailed], Neighbours::Shared),
            (&jailed, vec![&plain], Neighbours::Everywhere),
            (&root, vec![&jailed, &plain, &root], Neighbours::Everywhere),
        ] {
            assert_eq!(expected(one, &others), neighbours, "{one:?} beside {others:?}");
        }
        assert_eq!(plain.enters(), Some(Owner { uid: 7001, gid: 7001 }));
        assert_eq!(jailed.enters(), None);
    }
}
