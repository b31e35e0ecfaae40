//! The users of one volume and the progress of its steps, without I/O. The next step follows from this state, and is recorded
//! before it is executed, so that after a crash it is repeated or undone.
//!
//! ```text
//!   attach ─▶ stage ─▶ publish (one for each user)      once for the volume, in this order
//!   detach ◀─ unstage ◀─ unpublish                      when the last user has left
//! ```

use super::capability::{Capability, Usage};
use crate::spec::collections::BTreeMap;

/// Progress of a step that has to be undone later. A step that was not begun has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Begun, or its undoing was begun: it may have been executed or not.
    Unsure,
    /// Confirmed by the plugin.
    Done,
}

/// The steps that a plugin needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// The controller has to attach volumes.
    pub attach: bool,
    /// The node has to stage volumes.
    pub stage: bool,
}

/// A call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `ControllerPublishVolume`.
    Attach,
    /// `NodeStageVolume`.
    Stage,
    /// `NodePublishVolume` for this user.
    Publish(String),
    /// `NodeUnpublishVolume` for this user.
    Unpublish(String),
    /// `NodeUnstageVolume`.
    Unstage,
    /// `ControllerUnpublishVolume`.
    Detach,
}

/// A user of a volume, such as an allocation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct User {
    /// Whether it only reads.
    pub read_only: bool,
    /// Whether it no longer uses the volume and its steps have to be undone.
    #[serde(default)]
    pub leaves: bool,
    /// Progress of publishing.
    #[serde(default)]
    pub published: Option<Phase>,
}

/// One volume on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeUse {
    /// How it is used: the same for all users.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Progress of attaching.
    #[serde(default)]
    pub attached: Option<Phase>,
    /// The context that the controller returned for it.
    #[serde(default)]
    pub context: BTreeMap<String, String>,
    /// Progress of staging.
    #[serde(default)]
    pub staged: Option<Phase>,
    /// The users by name.
    #[serde(default)]
    pub users: BTreeMap<String, User>,
}

impl VolumeUse {
    /// Adds a user; an existing one is not changed.
    ///
    /// # Errors
    /// The reason of a refusal: it has a user with another kind of use, or an exclusive user.
    pub fn join(&mut self, user: &str, capability: &Capability, read_only: bool) -> Result<(), String> {
        if capability.access.is_reader_only() && !read_only {
            return Err(format!("access mode {} is for readers; use read_only = true", capability.access));
        }
        let others = || self.users.iter().filter(|(name, _)| *name != user);
        let usage = capability.usage();
        if let Some(used) = self.usage.as_ref().filter(|used| **used != usage)
            && let Some((other, _)) = others().next()
        {
            let what = if (used.access, used.attachment) == (capability.access, capability.attachment) {
                "with other mount options".to_owned()
            } else {
                format!("as {} {}", used.access, used.attachment)
            };
            return Err(format!("{other} uses it {what}; use it in the same way, or wait until it is free"));
        }
        let writers = || others().filter(|(_, other)| !other.read_only);
        if let Some(most) = capability.access.most_writers()
            && !read_only
            && writers().count() >= most
        {
            let other = writers().next().map_or("somebody", |(name, _)| name);
            let access = capability.access;
            return Err(format!(
                "{other} writes to it, and access mode {access} has {most} writer; wait until it is free"
            ));
        }
        match self.users.get(user) {
            Some(found) if found.leaves => return Err(format!("what {user} had of it is not undone yet; try again")),
            Some(found) if found.read_only != read_only => {
                return Err(format!("{user} has it already, with other rights; leave it first"));
            }
            Some(_) => {}
            None => {
                let user_of = User { read_only, leaves: false, published: None };
                self.users.insert(user.to_owned(), user_of);
            }
        }
        Ok(())
    }

    /// Marks a user as leaving.
    pub fn leave(&mut self, user: &str) {
        if let Some(user) = self.users.get_mut(user) {
            user.leaves = true;
        }
    }

    /// The next step for a user that has joined with `usage`; `None` when it has the volume.
    pub fn next_to_join(&mut self, user: &str, usage: &Usage, needs: Needs) -> Option<Step> {
        if self.usage.as_ref() != Some(usage) {
            // Remains of a former user with another kind of use.
            let left = self.next_to_clear();
            if left.is_some() {
                return left;
            }
            self.usage = Some(usage.clone());
        }
        let found = self.users.get(user).filter(|found| !found.leaves)?;
        if needs.attach && self.attached != Some(Phase::Done) {
            return Some(Step::Attach);
        }
        if needs.stage && self.staged != Some(Phase::Done) {
            return Some(Step::Stage);
        }
        (found.published != Some(Phase::Done)).then(|| Step::Publish(user.to_owned()))
    }

    /// The users that leave, and whose steps are not undone.
    pub(super) fn leaving(&self) -> Vec<String> {
        let leaving = self.users.iter().filter(|(_, user)| user.leaves && user.published.is_some());
        leaving.map(|(name, _)| name.clone()).collect()
    }

    /// The next step for users that leave and, without users, for the volume; `None` when everything is undone.
    pub fn next_to_leave(&self) -> Option<Step> {
        if let Some(name) = self.leaving().into_iter().next() {
            return Some(Step::Unpublish(name));
        }
        if self.users.values().any(|user| !user.leaves) { None } else { self.next_to_clear() }
    }

    fn next_to_clear(&self) -> Option<Step> {
        if self.staged.is_some() {
            return Some(Step::Unstage);
        }
        self.attached.is_some().then_some(Step::Detach)
    }

    /// The state to record before a step is executed.
    pub fn begin(&mut self, step: &Step) {
        *self.phase(step) = Some(Phase::Unsure);
    }

    /// The state after the plugin has confirmed the step.
    pub fn end(&mut self, step: &Step) {
        let is_undone = matches!(step, Step::Unpublish(_) | Step::Unstage | Step::Detach);
        *self.phase(step) = if is_undone { None } else { Some(Phase::Done) };
        if matches!(step, Step::Detach) {
            self.context.clear();
        }
    }

    fn phase(&mut self, step: &Step) -> &mut Option<Phase> {
        match step {
            Step::Attach | Step::Detach => &mut self.attached,
            Step::Stage | Step::Unstage => &mut self.staged,
            Step::Publish(user) | Step::Unpublish(user) => {
                let gone = || User { read_only: false, leaves: true, published: None };
                &mut self.users.entry(user.clone()).or_insert_with(gone).published
            }
        }
    }

    /// Removes users whose steps are all undone.
    pub fn forget(&mut self) {
        self.users.retain(|_, user| !user.leaves || user.published.is_some());
        if self.users.is_empty() && self.staged.is_none() && self.attached.is_none() {
            *self = VolumeUse::default();
        }
    }

    /// Whether steps are to be undone when these are the users that exist.
    #[must_use]
    pub fn needs_clearing(&self, is_live: &dyn Fn(&str) -> bool) -> bool {
        self.users.is_empty() || self.users.iter().any(|(name, user)| user.leaves || !is_live(name))
    }

    /// Whether there is nothing to record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == VolumeUse::default()
    }

    /// The state after a reboot: nothing is mounted, but volumes may still be attached.
    pub fn after_reboot(&mut self) {
        for phase in [&mut self.attached, &mut self.staged] {
            *phase = phase.map(|_| Phase::Unsure);
        }
        for user in self.users.values_mut() {
            user.published = user.published.map(|_| Phase::Unsure);
        }
    }

    /// The mount of a user was lost: all steps are executed again, from the first one on.
    pub fn lost(&mut self, user: &str) {
        self.staged = self.staged.map(|_| Phase::Unsure);
        if let Some(user) = self.users.get_mut(user) {
            user.published = user.published.map(|_| Phase::Unsure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{AccessMode, AttachmentMode};
    use crate::spec::MountOptions;

    const BOTH: Needs = Needs { attach: true, stage: true };

    fn capability(access: AccessMode) -> Capability {
        Capability { access, attachment: AttachmentMode::FileSystem, options: MountOptions::default() }
    }

    fn joined(volume: &mut VolumeUse, user: &str, capability: &Capability, needs: Needs) -> Vec<Step> {
        volume.join(user, capability, false).unwrap();
        let mut steps = Vec::new();
        while let Some(step) = volume.next_to_join(user, &capability.usage(), needs) {
            volume.begin(&step);
            volume.end(&step);
            steps.push(step);
        }
        steps
    }

    fn left(volume: &mut VolumeUse, user: &str) -> Vec<Step> {
        volume.leave(user);
        let mut steps = Vec::new();
        while let Some(step) = volume.next_to_leave() {
            volume.begin(&step);
            volume.end(&step);
            steps.push(step);
        }
        volume.forget();
        steps
    }

    #[test]
    fn f7_it_is_staged_once_and_published_for_each_and_all_is_undone_in_reverse() {
        let (mut volume, shared) = (VolumeUse::default(), capability(AccessMode::MultiNodeMultiWriter));
        let publish = |user: &str| Step::Publish(user.to_owned());
        let unpublish = |user: &str| Step::Unpublish(user.to_owned());
        assert_eq!(joined(&mut volume, "a", &shared, BOTH), [Step::Attach, Step::Stage, publish("a")]);
        assert_eq!(joined(&mut volume, "b", &shared, BOTH), [publish("b")]);
        assert_eq!(joined(&mut volume, "b", &shared, BOTH), [], "twice is once");
        assert_eq!(left(&mut volume, "a"), [unpublish("a")]);
        assert_eq!(left(&mut volume, "a"), [], "twice is once");
        assert_eq!(left(&mut volume, "b"), [unpublish("b"), Step::Unstage, Step::Detach]);
        assert!(volume.is_empty());
        assert_eq!(joined(&mut volume, "a", &shared, Needs::default()), [publish("a")]);
        assert_eq!(left(&mut volume, "a"), [unpublish("a")]);
        assert!(volume.is_empty());
    }

    #[test]
    fn f6_one_writer_keeps_others_out_and_nobody_changes_how_it_is_used() {
        let (mut volume, single) = (VolumeUse::default(), capability(AccessMode::SingleNodeWriter));
        joined(&mut volume, "a", &single, BOTH);
        let error = volume.join("b", &single, false).unwrap_err();
        assert!(error.contains("a writes to it, and access mode single-node-writer has 1 writer"), "{error}");
        let error = volume.join("b", &capability(AccessMode::MultiNodeMultiWriter), false).unwrap_err();
        assert!(error.contains("a uses it as single-node-writer file-system"), "{error}");
        let mut other = single.clone();
        other.options.flags.push("password=s3cret".to_owned());
        let error = volume.join("b", &other, true).unwrap_err();
        assert!(error.contains("other mount options") && !error.contains("s3cret"), "{error}");
        assert!(volume.join("c", &capability(AccessMode::SingleNodeReaderOnly), false).is_err());
        assert_eq!(volume.users.len(), 1, "nobody has joined");
        volume.join("b", &single, true).unwrap();
    }

    #[test]
    fn f7_what_was_left_in_another_use_is_undone_first() {
        let (mut volume, single) = (VolumeUse::default(), capability(AccessMode::SingleNodeWriter));
        joined(&mut volume, "a", &single, BOTH);
        volume.leave("a");
        volume.end(&Step::Unpublish("a".to_owned()));
        volume.begin(&Step::Unstage);
        volume.forget();
        let shared = capability(AccessMode::MultiNodeMultiWriter);
        volume.join("b", &shared, false).unwrap();
        let mut next = || {
            let step = volume.next_to_join("b", &shared.usage(), BOTH)?;
            volume.begin(&step);
            volume.end(&step);
            Some(step)
        };
        let steps = [Step::Unstage, Step::Detach, Step::Attach, Step::Stage, Step::Publish("b".to_owned())];
        assert_eq!(std::iter::from_fn(&mut next).collect::<Vec<_>>(), steps);
    }
}
