//! Names of this machine's world into numbers: hosts into addresses, users into ids. Never by glibc's getaddrinfo, getpwnam or
//! getgrnam: this program is a static file, and they would load the host's NSS modules into it, which are made for another
//! glibc and crash. `nsswitch.conf` is therefore not read here; `getent(1)`, a program of the host's own, reads it for users.

mod dns;
mod hosts;
mod message;
mod users;

pub use hosts::{addresses, connect};
pub use users::ask_host;
