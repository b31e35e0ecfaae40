//! The role `isolation-probe`: measures the isolation of a task from inside.

use std::ffi::OsString;
use std::io::Write as _;

use crate::container::probe::{self, Host};
use crate::spec::Role;
use crate::spec::json;

/// Measures the isolation table from inside and prints it as one JSON object. Has no threads and no open files.
pub(super) fn run(args: &[OsString]) -> i32 {
    let host = args.first().and_then(|host| json::from_str::<Host>(host.to_str()?).ok());
    let (Some(host), 1) = (host, args.len()) else {
        return super::explain(Role::IsolationProbe, "expected what to compare with, as JSON");
    };
    let report = match probe::measure(&host) {
        Ok(report) => report,
        Err(error) => return super::explain(Role::IsolationProbe, &format!("cannot start a child: {error}")),
    };
    let printed = json::to_vec(&report).map(|mut line| {
        line.push(b'\n');
        std::io::stdout().lock().write_all(&line)
    });
    i32::from(!matches!(printed, Ok(Ok(()))))
}
