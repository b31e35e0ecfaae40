//! Steps that are done in order and undone in reverse.

use super::error::{CleanupError, SetupError};

/// One step; it knows how, the list knows when.
#[tonic::async_trait]
pub(super) trait Hook<S: Send>: Send + Sync {
    /// Nomad's name of the step, for events.
    fn name(&self) -> &'static str;

    /// Does it, completely or not at all.
    async fn run(&self, subject: &mut S) -> Result<(), SetupError>;

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

    /// Does the steps that are not done yet and stops at the first that fails, of which it tells the name.
    pub(super) async fn run(&mut self, subject: &mut S) -> Result<(), (&'static str, SetupError)> {
        while let Some(hook) = self.hooks.get(self.done) {
            hook.run(subject).await.map_err(|e| (hook.name(), e))?;
            self.done += 1;
        }
        Ok(())
    }

    /// Undoes the steps that are done, the last one first. A step whose undoing failed does not stop the earlier ones.
    pub(super) async fn undo(&mut self, subject: &mut S) -> Vec<CleanupError> {
        let mut errors = Vec::new();
        for hook in self.hooks[..std::mem::take(&mut self.done)].iter().rev() {
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

        async fn undo(&self, log: &mut Vec<String>) -> Vec<CleanupError> {
            log.push(format!("undo {}", self.0));
            Vec::new()
        }
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
    }
}
