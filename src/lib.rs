//! agentbin: the client-side task runtime of a HashiCorp Nomad node, in one binary.
//!
//! The source is modules in layers (`ARCHITECTURE.md`); a module uses only modules of lower layers.
//! A program that embeds it calls [`init`] as its first statement and then owns the same helper roles
//! as the `agentbin` binary itself.
#![deny(unsafe_code)]
#![warn(missing_docs)]

// Both take defences out, or make inner functions public, for tests. A release has no debug assertions, so it cannot have them by accident.
#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` takes defences out: it needs a profile with debug assertions (dev, quick)");
#[cfg(all(feature = "fuzzing", not(debug_assertions)))]
compile_error!("the feature `fuzzing` opens inner functions: it needs a profile with debug assertions (dev, fuzz)");

pub mod agent;
pub mod alloc;
pub mod artifact;
pub mod cgroup;
pub mod cli;
pub mod container;
pub mod csi;
pub mod docker;
pub mod driver;
pub mod executor;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
pub mod jobspec;
pub mod logs;
pub mod names;
pub mod net;
pub mod plugin;
pub mod roles;
pub mod spec;
pub mod store;
#[allow(unsafe_code, reason = "the one module that calls the kernel")]
pub mod sys;
pub mod template;
pub mod wire;

pub use roles::{driver_main, init, serve_driver};
