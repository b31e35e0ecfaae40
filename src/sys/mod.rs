//! One system call each, done right; the only `unsafe` of the crate. Never combines two calls into a policy.

pub mod path;
