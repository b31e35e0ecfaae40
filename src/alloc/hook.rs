//! Steps that are done in order and undone in reverse.

use super::error::{CleanupError, SetupError};

/// One step: the hook implements it, and the stack decides when it runs.
#[tonic::async_trait]
pub(super) trait Hook<S: Send>: Send + Sync {
    /// Nomad's name of the step, for events.
    fn name(&self) -> &'static str;

    /// Runs the step, completely or not at all.
    async fn run(&self, subject: &mut S) -> Result<(), SetupError>;

    /// Restores what an earlier process did in this step, without changing it.
    async fn restore(&self, _subject: &mut S) -> Result<(), SetupError> {
        Ok(())
    }

    /// Undoes what a successful run did.
    async fn undo(&self, _subject: &mut S) -> Vec<CleanupError> {
        Vec::new()
    }
}

/// A list of steps and how many of them are done.
pub(super) struct Stack<S> {
    hooks: Vec<Box<dyn Hook<S>>>,
    done: usize,
}

impl<S: Send> Stack<S> {
    pub(super) fn new(hooks: Vec<Box<dyn Hook<S>>>) -> Stack<S> {
        Stack { hooks, done: 0 }
    }

    /// Runs the steps that are not done yet, and stops at the first that fails, whose name it returns.
    pub(super) async fn run(&mut self, subject: &mut S) -> Result<(), (&'static str, SetupError)> {
        while let Some(hook) = self.hooks.get(self.done) {
            hook.run(subject).await.map_err(|e| (hook.name(), e))?;
            self.done += 1;
        }
        Ok(())
    }

    /// Restores the first steps, as far as an earlier process has done them. Stops at the first one that is not done, or that
    /// cannot
    /// be restored; the name of the latter is returned.
    pub(super) async fn restore(
        &mut self,
        subject: &mut S,
        is_done: impl Fn(&str) -> bool,
    ) -> Result<(), (&'static str, SetupError)> {
        while let Some(hook) = self.hooks.get(self.done).filter(|hook| is_done(hook.name())) {
            hook.restore(subject).await.map_err(|e| (hook.name(), e))?;
            self.done += 1;
        }
        Ok(())
    }

    /// The names of the steps that are done.
    pub(super) fn done(&self) -> Vec<String> {
        self.hooks[..self.done].iter().map(|hook| hook.name().to_owned()).collect()
    }

    /// The next run repeats this step, if it is done, and the later ones.
    pub(super) fn repeat_from(&mut self, first: &str) {
        let done = self.hooks[..self.done].iter().position(|hook| hook.name() == first);
        self.done = done.unwrap_or(self.done);
    }

    /// Undoes the steps that are done, the last one first. If a step cannot be undone, the earlier ones are still undone.
    pub(super) async fn undo(&mut self, subject: &mut S) -> Vec<CleanupError> {
        self.undo_after("", subject).await
    }

    /// The same for the steps after the one of this name; if there is no such step, for all of them.
    pub(super) async fn undo_after(&mut self, last: &str, subject: &mut S) -> Vec<CleanupError> {
        let kept = self.hooks[..self.done].iter().position(|hook| hook.name() == last).map_or(0, |at| at + 1);
        let done = std::mem::replace(&mut self.done, kept);
        let mut errors = Vec::new();
        for hook in self.hooks[kept..done].iter().rev() {
            errors.extend(hook.undo(subject).await);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Pos;

    struct Step(&'static str, bool);

    #[tonic::async_trait]
    impl Hook<Vec<String>> for Step {
        fn name(&self) -> &'static str {
            self.0
        }

        async fn run(&self, log: &mut Vec<String>) -> Result<(), SetupError> {
            log.push(format!("do {}", self.0));
            let failing = self.1 && log.iter().filter(|l| **l == format!("do {}", self.0)).count() == 1;
            if failing { Err(SetupError::TaskName { name: "x".to_owned(), pos: Pos::default() }) } else { Ok(()) }
        }

        async fn restore(&self, log: &mut Vec<String>) -> Result<(), SetupError> {
            log.push(format!("restore {}", self.0));
            Ok(())
        }

        async fn undo(&self, log: &mut Vec<String>) -> Vec<CleanupError> {
            log.push(format!("undo {}", self.0));
            Vec::new()
        }
    }

    #[tokio::test]
    async fn what_an_earlier_process_did_is_taken_up_and_undone_with_the_rest() {
        let (mut log, mut stack) = (Vec::new(), stack());
        stack.restore(&mut log, |name| name != "b").await.unwrap();
        assert_eq!((stack.done(), &log), (vec!["a".to_owned()], &vec!["restore a".to_owned()]));
        assert!(stack.run(&mut log).await.is_err());
        stack.undo(&mut log).await;
        assert_eq!(log[1..], ["do b", "do c", "undo b", "undo a"]);
    }

    fn stack() -> Stack<Vec<String>> {
        Stack::new(vec![Box::new(Step("a", false)), Box::new(Step("b", false)), Box::new(Step("c", true))])
    }

    #[tokio::test]
    async fn undo_is_in_reverse_and_only_of_what_was_done() {
        let (mut log, mut stack) = (Vec::new(), stack());
        assert_eq!(stack.run(&mut log).await.unwrap_err().0, "c");
        stack.undo(&mut log).await;
        assert_eq!(log, ["do a", "do b", "do c", "undo b", "undo a"]);
        stack.undo(&mut log).await;
        assert_eq!(log.len(), 5, "nothing is undone twice");
    }

    #[tokio::test]
    async fn another_run_goes_on_where_the_last_one_failed() {
        let (mut log, mut stack) = (Vec::new(), stack());
        assert!(stack.run(&mut log).await.is_err());
        stack.run(&mut log).await.unwrap();
        assert_eq!(log, ["do a", "do b", "do c", "do c"]);
        stack.repeat_from("b");
        assert_eq!(stack.done(), ["a"]);
        stack.repeat_from("c");
        stack.run(&mut log).await.unwrap();
        assert_eq!(log[4..], ["do b", "do c"], "what is not done is not repeated");
    }
}
