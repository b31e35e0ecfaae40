//! Tests of filter expressions: operators, errors, limits.

use serde_json::json;

use super::*;

fn fits(expression: &str) -> bool {
    let value = json!({
        "ID": "web", "Status": "running", "Count": 3, "Load": 1.5, "Stop": false, "Nothing": null, "Text": "a b",
        "Meta": {"k": "v", "a.b": "x", "empty": ""},
        "Tags": ["one", "two"], "Numbers": [1, 2], "None": [],
        "Groups": [{"Name": "g", "Count": 0}, {"Name": "h", "Count": 2}],
        "Periodic": {"Enabled": true},
    });
    Filter::new(expression)
        .unwrap_or_else(|e| panic!("{expression}: {e}"))
        .fits(&value)
        .unwrap_or_else(|e| panic!("{expression}: {e}"))
}

#[test]
fn every_operator_says_yes_and_no() {
    let yes = [
        "ID == web",
        "ID==\"web\"",
        "ID == `web`",
        "Status != pending",
        "Count == 3",
        "Count == \"0x3\"",
        "Load == 1.5",
        "Stop == false",
        "Stop != true",
        "Text == \"a b\"",
        "Meta.k == v",
        "Meta[\"a.b\"] == x",
        "\"/Meta/a.b\" == x",
        "\"/Meta/k\" != \"w\"",
        "Tags contains one",
        "one in Tags",
        "\"two\" in Tags",
        "three not in Tags",
        "Tags not contains three",
        "1 in Numbers",
        "k in Meta",
        "Meta contains k",
        "nope not in Meta",
        "Text contains \"a \"",
        "ID matches \"^w.b$\"",
        "ID not matches `^x`",
        "None is empty",
        "Meta.empty is empty",
        "Tags is not empty",
        "Nothing is nil",
        "Periodic is not nil",
        "Nothing is empty",
        "x not in Nothing",
        "Meta.nope is empty",
        "Meta.nope is nil",
        "Meta.nope != x",
        "Tags.1 == two",
        "\"/Groups/1/Name\" == h",
        "not ID == x",
        "not not ID == web",
        "ID == x or ID == web",
        "ID == web and Count == 3",
        "(ID == x or ID == web) and Count == 3",
        " ( ID == web ) ",
        "ID == x and ID == y or ID == web",
        "ID == web or ID == x and ID == y",
        "any Groups as g { g.Name == h }",
        "all Groups as g { g.Name matches \"[gh]\" }",
        "any Groups as _, g { g.Count == 2 }",
        "any Meta as k { k == k or k == \"a.b\" }",
        "any Meta as k, v { k == \"a.b\" and v == x }",
        "all None as x { x == y }",
        "any Numbers as i, v { i == 1 and v == 2 }",
        "ID == x or any Tags as t { t == two }",
        "(any Tags as t { t == two }) and ID == web",
        "not (any Tags as t { t == three })",
        "ID == \"w\\x65b\"",
    ];
    for expression in yes {
        assert!(fits(expression), "{expression}");
        assert!(!fits(&format!("not ({expression})")), "{expression}");
    }
    // A path's first slash stays, unlike in the Go package.
    let path = Filter::new("Path == \"/a/b\"").unwrap();
    assert_eq!(path.fits(&json!({"Path": "/a/b"})), Ok(true));
}

#[test]
fn what_is_no_expression_is_refused_with_its_place() {
    let wrong = [
        "",
        "x",
        "ID",
        "ID =",
        "ID == ",
        "== x",
        "ID == web and",
        "ID == web or",
        "(ID == web",
        "ID == web)",
        "not",
        "ID is",
        "ID is not",
        "ID == 1x",
        "ID == \"open",
        "ID == `open",
        "ID == \"\\q\"",
        "ID matches \"(\"",
        "1 == ID",
        "ID == web ID == web",
        "ID in",
        "[",
        "Meta[k] == v",
        "Meta[\"k\" == v",
        "any Tags as { x == y }",
        "any Tags as t { t == one",
        "any Tags as _, _ { a == b }",
        "ID == web and any Tags as t { t == one }",
        "ID == 01",
        "\u{e9} == x",
    ];
    for expression in wrong {
        assert!(matches!(Filter::new(expression), Err(FilterError::Syntax { .. })), "{expression}");
    }
    let message = Filter::new("ID == web and").unwrap_err().to_string();
    assert!(message.starts_with("failed to read filter expression: 1:14 (13): "), "{message}");
    let deep = format!("{}ID == web{}", "(".repeat(5000), ")".repeat(5000));
    assert!(Filter::new(&deep).is_err());
    assert!(Filter::new(&format!("ID == {}", "x".repeat(20_000))).is_err());
    let many = vec!["ID matches \"\\\\w{30}\""; 500].join(" or ");
    let error = Filter::new(&many).unwrap_err().to_string();
    assert!(error.contains("at most 8 regular expressions"), "{error}");
}

#[test]
fn a_filter_is_as_deep_and_as_long_as_memory_and_time_allow() {
    let value = json!({"a": "c", "l": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]});
    // On a small stack: no level of it for each word.
    let long = |word: &str, value: Value| {
        let text = vec!["a==b"; 1800].join(word);
        let asks = move || Filter::new(&text).unwrap().fits(&value);
        std::thread::Builder::new().stack_size(256 << 10).spawn(asks).unwrap().join().unwrap()
    };
    assert_eq!(long(" or ", value.clone()), Ok(false));
    assert_eq!(long(" and ", json!({"a": "b"})), Ok(true));
    let deep = (0..12).fold("a == b".to_owned(), |inner, n| format!("any l as x{n} {{ {inner} }}"));
    let error = Filter::new(&deep).unwrap().fits(&value).unwrap_err().to_string();
    assert!(error.contains("more than 5000 comparisons"), "{error}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let value = json!({"A": "x", "N": 1, "L": [[1]], "M": {"b": {"c": 1}}});
    for expression in [
        "B == x",
        "A.b == x",
        "N == x",
        "N contains 1",
        "N matches 1",
        "N is empty",
        "A is nil",
        "L contains 1",
        "L.7 == 1",
        "M.x.y == 1",
        "M == 1",
        "any A as x { x == 1 }",
        "any M as k { k.x == 1 }",
    ] {
        let error = Filter::new(expression).unwrap().fits(&value);
        assert!(matches!(error, Err(FilterError::Value(_))), "{expression}: {error:?}");
    }
}
