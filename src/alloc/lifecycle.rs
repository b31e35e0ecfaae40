//! Which tasks of a group may run now, and which must die: two pure state machines over the tasks' states.
//!
//! ```text
//!            all pending        one-shots succeeded,      no main task        one-shots succeeded,
//!                               sidecars running          pending             sidecars running
//!   Init ───────────▶ Prestart ───────────────▶ Main ───────────────▶ Poststart ──────────▶ WaitAlloc
//!     └──────────────────┴────────────────────────┴──────────────────────┴────────────────────┘
//!                                        everything but poststop is dead ▼
//!                                                                    Poststop
//! ```

use crate::spec::{LifecycleHook, Task};

/// The role of a task in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    PrestartOnce,
    PrestartSidecar,
    Main,
    PoststartOnce,
    PoststartSidecar,
    Poststop,
}

impl Stage {
    pub(super) fn of(task: &Task) -> Stage {
        match task.lifecycle.map(|l| (l.hook, l.sidecar)) {
            None => Stage::Main,
            Some((LifecycleHook::Prestart, false)) => Stage::PrestartOnce,
            Some((LifecycleHook::Prestart, true)) => Stage::PrestartSidecar,
            Some((LifecycleHook::Poststart, false)) => Stage::PoststartOnce,
            Some((LifecycleHook::Poststart, true)) => Stage::PoststartSidecar,
            Some((LifecycleHook::Poststop, _)) => Stage::Poststop,
        }
    }

    pub(super) const fn is_sidecar(self) -> bool {
        matches!(self, Stage::PrestartSidecar | Stage::PoststartSidecar)
    }
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    /// Not started, or waiting for a restart.
    Pending,
    /// Its process runs.
    Running,
    /// It will not run again.
    Dead {
        /// Whether it failed.
        failed: bool,
    },
}

impl TaskState {
    pub(super) const fn is_dead(self) -> bool {
        matches!(self, TaskState::Dead { .. })
    }

    const fn succeeded(self) -> bool {
        matches!(self, TaskState::Dead { failed: false })
    }
}

/// The phase of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Init,
    Prestart,
    Main,
    Poststart,
    WaitAlloc,
    Poststop,
}

/// Opens the gates of a group's tasks in order.
#[derive(Debug)]
pub(super) struct Coordinator {
    stages: Vec<Stage>,
    phase: Phase,
}

impl Coordinator {
    pub(super) fn new(stages: Vec<Stage>) -> Coordinator {
        Coordinator { stages, phase: Phase::Init }
    }

    /// The same for tasks that an earlier process has begun to start.
    pub(super) fn restored(self) -> Coordinator {
        Coordinator { phase: Phase::Prestart, ..self }
    }

    #[cfg(test)]
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Advances as far as `states` (one for each task, in the order of the stages) allow.
    pub(super) fn update(&mut self, states: &[TaskState]) {
        while let Some(next) = self.next(states) {
            self.phase = next;
        }
    }

    /// Whether the task with this number may be started.
    pub(super) fn allows(&self, task: usize) -> bool {
        use Stage::{Main, PoststartOnce, PoststartSidecar, Poststop, PrestartOnce, PrestartSidecar};
        let stage = self.stages[task];
        match self.phase {
            Phase::Init => false,
            Phase::Prestart => matches!(stage, PrestartOnce | PrestartSidecar),
            Phase::Main => matches!(stage, PrestartSidecar | Main),
            Phase::Poststart => matches!(stage, PrestartSidecar | Main | PoststartOnce | PoststartSidecar),
            Phase::WaitAlloc => matches!(stage, PrestartSidecar | Main | PoststartSidecar),
            Phase::Poststop => stage == Poststop,
        }
    }

    fn next(&self, states: &[TaskState]) -> Option<Phase> {
        let all = |wanted: &dyn Fn(Stage, TaskState) -> bool| {
            self.stages.iter().zip(states).all(|(stage, state)| wanted(*stage, *state))
        };
        let rest_dead = all(&|stage, state| stage == Stage::Poststop || state.is_dead());
        if rest_dead && self.phase != Phase::Poststop {
            return Some(Phase::Poststop);
        }
        match self.phase {
            Phase::Init => all(&|_, state| state == TaskState::Pending).then_some(Phase::Prestart),
            Phase::Prestart => all(&|stage, state| match stage {
                Stage::PrestartOnce => state.succeeded(),
                Stage::PrestartSidecar => state == TaskState::Running,
                _ => true,
            })
            .then_some(Phase::Main),
            Phase::Main => {
                all(&|stage, state| stage != Stage::Main || state != TaskState::Pending).then_some(Phase::Poststart)
            }
            Phase::Poststart => all(&|stage, state| match stage {
                Stage::PoststartOnce => state.succeeded(),
                Stage::PoststartSidecar => state == TaskState::Running,
                _ => true,
            })
            .then_some(Phase::WaitAlloc),
            Phase::WaitAlloc | Phase::Poststop => None,
        }
    }
}

/// Why a group's tasks are killed although no stop was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doom {
    /// The task with this number failed.
    SiblingFailed(usize),
    /// The leader, with this number, is dead.
    LeaderDead(usize),
    /// Only sidecars remain.
    MainTasksDead,
}

/// One task as the kill rules see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) stage: Stage,
    pub(super) leader: bool,
    pub(super) state: TaskState,
}

impl Member {
    const fn killable(self) -> bool {
        !self.state.is_dead() && !matches!(self.stage, Stage::Poststop)
    }
}

/// Whether the group's remaining tasks must die now.
pub(super) fn doom(members: &[Member]) -> Option<Doom> {
    let mut live = members.iter().filter(|m| m.killable()).peekable();
    live.peek()?;
    let failed = |m: &Member| m.state == TaskState::Dead { failed: true } && m.stage != Stage::Poststop;
    if let Some(index) = members.iter().position(failed) {
        return Some(Doom::SiblingFailed(index));
    }
    if let Some(index) = members.iter().position(|m| m.leader && m.state.is_dead()) {
        return Some(Doom::LeaderDead(index));
    }
    live.all(|m| m.stage.is_sidecar()).then_some(Doom::MainTasksDead)
}

/// The tasks to kill next once the group must die: first the leader alone, then all but sidecars, then the sidecars. Poststop
/// tasks are not killed; they run afterwards.
pub(super) fn next_victims(members: &[Member]) -> Vec<usize> {
    let numbers = |wanted: &dyn Fn(&Member) -> bool| -> Vec<usize> {
        let live = members.iter().enumerate().filter(|(_, m)| m.killable() && wanted(m));
        live.map(|(i, _)| i).collect()
    };
    [numbers(&|m| m.leader), numbers(&|m| !m.stage.is_sidecar()), numbers(&|m| m.stage.is_sidecar())]
        .into_iter()
        .find(|batch| !batch.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::TaskState::{Dead, Pending, Running};
    use super::*;

    const DONE: TaskState = Dead { failed: false };
    const FAILED: TaskState = Dead { failed: true };

    fn allowed(coordinator: &Coordinator) -> Vec<usize> {
        (0..coordinator.stages.len()).filter(|i| coordinator.allows(*i)).collect()
    }

    #[test]
    fn a_restored_group_goes_on_where_it_was() {
        let stages = [Stage::PrestartOnce, Stage::PrestartSidecar, Stage::Main, Stage::PoststartOnce];
        let at = |states: &[TaskState]| {
            let mut coordinator = Coordinator::new(stages.to_vec()).restored();
            coordinator.update(states);
            coordinator.phase()
        };
        assert_eq!(at(&[Pending; 4]), Phase::Prestart);
        assert_eq!(at(&[Running, Running, Pending, Pending]), Phase::Prestart);
        assert_eq!(at(&[DONE, Running, Pending, Pending]), Phase::Main);
        assert_eq!(at(&[DONE, Pending, Running, Pending]), Phase::Prestart, "the sidecar may be started again");
        assert_eq!(at(&[DONE, Running, Running, Pending]), Phase::Poststart);
        assert_eq!(at(&[DONE, Running, Running, DONE]), Phase::WaitAlloc);
        assert_eq!(at(&[DONE; 4]), Phase::Poststop);
    }

    fn after(stages: &[Stage], history: &[&[TaskState]]) -> Coordinator {
        let mut coordinator = Coordinator::new(stages.to_vec());
        for states in history {
            coordinator.update(states);
        }
        coordinator
    }

    #[test]
    fn only_main_app() {
        let stages = [Stage::Main];
        assert_eq!(allowed(&after(&stages, &[])), [0usize; 0]);
        let coordinator = after(&stages, &[&[Pending]]);
        assert_eq!((coordinator.phase(), allowed(&coordinator)), (Phase::Main, vec![0]));
        assert_eq!(after(&stages, &[&[Pending], &[Running]]).phase(), Phase::WaitAlloc);
    }

    #[test]
    fn prestart_runs_before_main() {
        let stages = [Stage::PrestartSidecar, Stage::PrestartOnce, Stage::Main];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3]])), [0, 1]);
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[Running, Running, Pending]])), [0, 1]);
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[Running, DONE, Pending]])), [0, 2]);
    }

    #[test]
    fn main_runs_after_many_init_tasks() {
        let stages = [Stage::Main, Stage::PrestartOnce, Stage::PrestartOnce];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[Pending, DONE, Running]])), [1, 2]);
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[Pending, DONE, DONE]])), [0]);
    }

    #[test]
    fn failed_init_task_keeps_main_from_running() {
        let stages = [Stage::Main, Stage::PrestartOnce, Stage::PrestartOnce];
        let coordinator = after(&stages, &[&[Pending; 3], &[Pending, FAILED, DONE]]);
        assert_eq!((coordinator.phase(), coordinator.allows(0)), (Phase::Prestart, false));
    }

    #[test]
    fn sidecar_never_starts() {
        let stages = [Stage::Main, Stage::PrestartSidecar, Stage::PrestartOnce];
        assert!(!after(&stages, &[&[Pending; 3], &[Pending, Pending, DONE]]).allows(0));
    }

    #[test]
    fn poststart_starts_after_main() {
        let stages = [Stage::Main, Stage::PrestartSidecar, Stage::PoststartOnce, Stage::PoststartSidecar];
        let up = [Pending, Running, Pending, Pending];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 4], &up])), [0, 1]);
        let main = [Running, Running, Pending, Pending];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 4], &up, &main])), [0, 1, 2, 3]);
        let posted = [Running, Running, DONE, Running];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 4], &up, &main, &posted])), [0, 1, 3]);
    }

    #[test]
    fn poststop_runs_when_the_others_are_dead_whatever_killed_them() {
        let stages = [Stage::PrestartOnce, Stage::Main, Stage::Poststop];
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[FAILED, Pending, Pending]])), [0]);
        assert_eq!(allowed(&after(&stages, &[&[Pending; 3], &[FAILED, DONE, Pending]])), [2]);
    }

    #[test]
    fn a_short_main_task_still_gets_its_poststart() {
        let stages = [Stage::Main, Stage::PoststartOnce];
        assert!(after(&stages, &[&[Pending; 2], &[DONE, Pending]]).allows(1));
    }

    fn group(members: &[(Stage, bool, TaskState)]) -> Vec<Member> {
        members.iter().map(|(stage, leader, state)| Member { stage: *stage, leader: *leader, state: *state }).collect()
    }

    #[test]
    fn task_leader_kill_tg() {
        let members = group(&[(Stage::Main, true, DONE), (Stage::Main, false, Running)]);
        assert_eq!(doom(&members), Some(Doom::LeaderDead(0)));
    }

    #[test]
    fn task_leader_stop_tg() {
        use Stage::{Main, Poststop, PrestartSidecar};
        let mut members = group(&[
            (Main, false, Running),
            (Main, true, Running),
            (PrestartSidecar, false, Running),
            (Poststop, false, Pending),
        ]);
        for victims in [vec![1], vec![0], vec![2], vec![]] {
            assert_eq!(next_victims(&members), victims);
            for victim in victims {
                members[victim].state = DONE;
            }
        }
    }

    #[test]
    fn task_main_kill_tg() {
        let mut members = group(&[(Stage::Main, false, DONE), (Stage::PoststartSidecar, false, Running)]);
        assert_eq!(doom(&members), Some(Doom::MainTasksDead));
        members.push(Member { stage: Stage::PoststartOnce, leader: false, state: Pending });
        assert_eq!(doom(&members), None, "the one-shot has not had its turn");
        members[0].state = FAILED;
        assert_eq!(doom(&members), Some(Doom::SiblingFailed(0)));
    }

    #[test]
    fn a_failed_poststop_dooms_nobody_and_the_dead_are_not_doomed() {
        let members = group(&[(Stage::Main, false, Running), (Stage::Poststop, false, FAILED)]);
        assert_eq!(doom(&members), None);
        assert_eq!(doom(&group(&[(Stage::Main, false, FAILED), (Stage::Poststop, false, Pending)])), None);
    }
}
