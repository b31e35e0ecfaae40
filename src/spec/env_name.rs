//! Names of environment variables that contain a label of a job file.

/// The name of an environment variable that a label of a job file is part of, such as `NOMAD_PORT_web`, as Nomad writes it: what
/// is neither an ASCII letter or digit nor `_` or `.` becomes `_`, byte by byte.
#[must_use]
pub fn env_name(name: &str) -> String {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    name.bytes().map(|byte| if is_kept(byte) { char::from(byte) } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::env_name;

    #[test]
    fn dots_stay_and_every_other_byte_becomes_an_underscore() {
        for (name, expected) in [
            ("", ""),
            ("NOMAD_PORT_http2", "NOMAD_PORT_http2"),
            ("web.http", "web.http"),
            ("a-b", "a_b"),
            ("ä-€", "______"),
        ] {
            assert_eq!(env_name(name), expected, "{name}");
        }
    }
}
