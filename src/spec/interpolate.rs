//! Replacement of runtime references, `${name}`, in a text.

/// Replaces the runtime references `${name}` in a text by what `lookup` knows of them.
///
/// What `lookup` does not know stays as it is, `$${` becomes a literal `${`, and a replacement is not looked at again.
#[must_use]
pub fn interpolate(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &from[2..];
            continue;
        }
        out.push_str(before);
        let inner = &from[2..];
        if let Some((value, end)) = closing_brace(inner).and_then(|end| Some((lookup(inner[..end].trim())?, end))) {
            out.push_str(&value);
            rest = &inner[end + 1..];
        } else {
            out.push_str("${");
            rest = inner;
        }
    }
    out.push_str(rest);
    out
}

/// The brace that closes a reference; one in quotes (`meta["a}b"]`) does not.
///
/// It is not looked for any further than a reference is long, so that many that are open take no time each.
fn closing_brace(inner: &str) -> Option<usize> {
    const LONGEST_REFERENCE: usize = 1024;
    let mut quoted = false;
    let inner = &inner[..inner.floor_char_boundary(LONGEST_REFERENCE)];
    inner.char_indices().find_map(|(i, c)| match c {
        '"' => {
            quoted = !quoted;
            None
        }
        '}' if !quoted => Some(i),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::interpolate;

    #[test]
    fn known_references_are_replaced_and_all_else_stays() {
        let lookup = |name: &str| match name {
            "NOMAD_PORT_http" => Some("8080".to_owned()),
            "meta[\"a}b\"]" => Some("braced".to_owned()),
            "env.LOOP" => Some("${env.LOOP}".to_owned()),
            "empty" => Some(String::new()),
            _ => None,
        };
        for (text, expected) in [
            ("", ""),
            ("plain $ text {}", "plain $ text {}"),
            (":${NOMAD_PORT_http}/x", ":8080/x"),
            ("${ NOMAD_PORT_http }", "8080"),
            ("${unknown.x}", "${unknown.x}"),
            ("${ unknown }", "${ unknown }"),
            ("$${NOMAD_PORT_http}", "${NOMAD_PORT_http}"),
            ("$$${NOMAD_PORT_http}", "$${NOMAD_PORT_http}"),
            ("${meta[\"a}b\"]}", "braced"),
            ("${env.LOOP}", "${env.LOOP}"),
            ("[${empty}]", "[]"),
            ("${never closed", "${never closed"),
            ("${a${NOMAD_PORT_http}}", "${a8080}"),
            ("ä${NOMAD_PORT_http}ö", "ä8080ö"),
        ] {
            assert_eq!(interpolate(text, &lookup), expected, "{text}");
        }
    }
}
