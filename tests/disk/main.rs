//! What only a whole machine shows: systemd as its first process, an engine on v2, reboots. In that of `scripts/guest --disk`, which
//! the tests change as an operator would; elsewhere they skip themselves. `scripts/test guest-disk` runs each group in its own.
#![allow(clippy::tests_outside_test_module, reason = "an integration test has no other module")]
#![expect(
    clippy::disallowed_methods,
    reason = "what other programs do is waited for until a deadline; there is no event"
)]

mod csi;
mod docker;
#[path = "../support/engine.rs"]
mod engine;
mod machine;
mod nomad;
mod systemd;
mod trace;
mod user;
