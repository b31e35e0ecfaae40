/// Replaces each `${key}` for which `lookup` has a value; an unknown reference stays as it is, `$${` becomes `${`.
#[must_use]
pub fn interpolate(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(escaped) = rest.strip_prefix("$${") {
            out.push_str("${");
            rest = escaped;
        } else if let Some((key, after)) = rest.strip_prefix("${").and_then(|r| r.split_once('}')) {
            match lookup(key.trim()) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&rest[..rest.len() - after.len()]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}
