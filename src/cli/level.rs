//! The least isolation that an operator demands: `--isolation-minimum`.

use crate::driver::policy::Minimum;

/// What `--isolation-minimum` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// As `isolation = "default"`
    Default,
    /// As `isolation = "strict"`
    Strict,
}

impl Level {
    pub(super) const fn minimum(self) -> Minimum {
        match self {
            Level::Default => Minimum::Default,
            Level::Strict => Minimum::Strict,
        }
    }

    /// The stricter of two minimums.
    pub(super) fn stricter(one: Option<Level>, other: Option<Level>) -> Option<Level> {
        match (one, other) {
            (Some(Level::Strict), _) | (_, Some(Level::Strict)) => Some(Level::Strict),
            (Some(Level::Default), _) | (_, Some(Level::Default)) => Some(Level::Default),
            (None, None) => None,
        }
    }
}
