//! Patterns of operators for names.

/// Whether a name matches a pattern in which `*` stands for any text.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_names_are_globs() {
        for (pattern, name, expected) in [
            ("AWS_*", "AWS_SECRET", true),
            ("AWS_*", "MY_AWS_SECRET", false),
            ("*TOKEN", "NOMAD_TOKEN", true),
            ("*_X_*", "A_X_B", true),
            ("*_X_*", "A_X", false),
            ("HOME", "HOME", true),
            ("HOME", "HOMES", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
