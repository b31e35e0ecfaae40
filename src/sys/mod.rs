//! One system call each, done right; the only `unsafe` of the crate. Never combines two calls into a policy.

pub mod acl;
pub mod auxv;
pub mod bpf;
pub mod children;
pub mod exe;
pub mod features;
pub mod interfaces;
pub mod listeners;
pub mod lock;
pub mod mount;
pub mod mutant;
pub mod net;
pub mod owned;
pub mod pages;
pub mod path;
pub mod prctl;
pub mod probe;
pub mod process;
pub mod processes;
pub mod random;
pub mod seccomp;
pub mod signals;
pub mod stream;
pub mod task;
pub mod time;
pub mod watch;
