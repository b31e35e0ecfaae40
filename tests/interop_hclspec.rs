//! A4: configuration against a schema, beside the real HCL library (`tests/interop/golden`).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use agentbin::driver::hclspec::{Body, Schema};
use agentbin::wire::hclspec::{Spec, spec};
use agentbin::wire::schema::{
    Literal, array, attr, block, block_attrs, block_list, block_map, block_set, default_spec, object, with_default,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

#[path = "support/golden.rs"]
mod golden;

/// A schema as the Go program reads it.
fn spec_json(spec: &Spec) -> Value {
    let nested = |spec: &Option<Box<Spec>>| spec_json(spec.as_ref().unwrap());
    match spec.block.as_ref().unwrap() {
        spec::Block::Object(o) => {
            json!({"object": o.attributes.iter().map(|(k, s)| (k.clone(), spec_json(s))).collect::<serde_json::Map<_, _>>()})
        }
        spec::Block::Array(a) => json!({"array": a.values.iter().map(spec_json).collect::<Vec<_>>()}),
        spec::Block::Attr(a) => json!({"attr": {"name": a.name, "type": a.r#type, "required": a.required}}),
        spec::Block::BlockValue(b) => {
            json!({"block": {"name": b.name, "required": b.required, "nested": nested(&b.nested)}})
        }
        spec::Block::BlockAttrs(a) => {
            json!({"block_attrs": {"name": a.name, "type": a.r#type, "required": a.required}})
        }
        spec::Block::BlockList(b) => {
            json!({"block_list": {"name": b.name, "min": b.min_items, "max": b.max_items, "nested": nested(&b.nested)}})
        }
        spec::Block::BlockSet(b) => {
            json!({"block_set": {"name": b.name, "min": b.min_items, "max": b.max_items, "nested": nested(&b.nested)}})
        }
        spec::Block::BlockMap(b) => {
            json!({"block_map": {"name": b.name, "labels": b.labels, "nested": nested(&b.nested)}})
        }
        spec::Block::Default(d) => json!({"default": [nested(&d.primary), nested(&d.default)]}),
        spec::Block::Literal(l) => json!({"literal": l.value}),
    }
}

struct Case {
    spec: Spec,
    body: String,
}

fn variables() -> serde_json::Map<String, Value> {
    let Value::Object(variables) = json!({"NOMAD_PORT_http": "8080", "name": "x"}) else { unreachable!() };
    variables
}

fn ours(case: &Case) -> Result<Vec<u8>, String> {
    let schema = Schema::new(&case.spec).map_err(|e| e.to_string())?;
    let body = Body::parse(Path::new("f.json"), &case.body).map_err(|e| e.to_string())?;
    schema.encode(&body, &variables()).map_err(|e| e.to_string())
}

/// The same bytes as the real library, and an error where it has one.
fn compare(binary: &Path, cases: &[Case]) -> (usize, usize) {
    let questions: Vec<Value> =
        cases.iter().map(|c| json!({"spec": spec_json(&c.spec), "body": c.body, "vars": variables()})).collect();
    let answers: Vec<Value> =
        serde_json::from_str(&golden::ask(binary, "hclspec", &serde_json::to_string(&questions).unwrap())).unwrap();
    let (mut good, mut bad, mut faults) = (0, 0, Vec::new());
    for (case, answer) in cases.iter().zip(&answers) {
        let question = || format!("{}\n{}", spec_json(&case.spec), case.body);
        match (ours(case), answer["hex"].as_str()) {
            (Ok(bytes), Some(hex)) if golden::hex(&bytes) == hex => good += 1,
            (Err(_), None) => bad += 1,
            (Ok(bytes), Some(hex)) => faults.push(format!(
                "{}\nours {}\nGo's {}",
                question(),
                agentbin::wire::cty::decode(&bytes).unwrap(),
                agentbin::wire::cty::decode(&golden::bytes(hex)).unwrap_or_default()
            )),
            (Ok(bytes), None) => faults.push(format!(
                "{}\nours {}\nGo refuses: {}",
                question(),
                agentbin::wire::cty::decode(&bytes).unwrap(),
                answer["error"]
            )),
            (Err(e), Some(_)) => faults.push(format!("{}\nwe refuse what Go takes: {e}", question())),
        }
    }
    assert!(faults.is_empty(), "{} of {} differ:\n\n{}", faults.len(), cases.len(), faults.join("\n\n"));
    (good, bad)
}

/// Shapes that Nomad's own drivers have, and every corner that somebody may lean on.
fn cases() -> Vec<Case> {
    let string = || attr("s", "string", false);
    let nested = || object([("a", attr("a", "string", true)), ("b", attr("b", "number", false))]);
    let all = || {
        object([
            ("s", string()),
            ("n", attr("", "number", false)),
            ("f", attr("", "bool", false)),
            ("any", attr("any", "any", false)),
            ("list", attr("list", "list(string)", false)),
            ("set", attr("set", "set(number)", false)),
            ("map", attr("map", "map(string)", false)),
            ("maps", attr("maps", "list(map(string))", false)),
            ("obj", attr("obj", "object({a = string, b = number})", false)),
            ("tup", attr("tup", "tuple([string, bool])", false)),
            ("anys", attr("anys", "list(any)", false)),
            ("one", block("one", false, nested())),
            ("many", block_list("many", 0, 3, nested())),
            ("sets", block_set("sets", 0, 0, nested())),
            ("labeled", block_map("labeled", ["x"], nested())),
            ("twice", block_map("twice", ["x", "y"], nested())),
            ("free", block_attrs("free", "number", false)),
            ("def", with_default(attr("def", "string", false), Literal::string("3m"))),
            ("lit", Literal::expression("max(1, length([1, 2, 3]))").into()),
            ("renamed", attr("other", "string", false)),
            ("pair", array([attr("p", "string", false), Literal::bool(true).into()])),
        ])
    };
    let bodies = [
        "{}",
        r#"{"s": "x"}"#,
        r#"{"s": 5}"#,
        r#"{"s": 0.1}"#,
        r#"{"s": 1e3}"#,
        r#"{"s": true}"#,
        r#"{"s": null}"#,
        r#"{"s": ["x"]}"#,
        r#"{"s": {"a": 1}}"#,
        r#"{"s": "${name}-${NOMAD_PORT_http}"}"#,
        r#"{"s": "${nobody}"}"#,
        r#"{"s": "$${name} %%{x}"}"#,
        r#"{"s": "${upper(name)}"}"#,
        r#"{"s": "${file(name)}"}"#,
        r#"{"s": "${[1, 2][1]}"}"#,
        r#"{"s": "%{ if true }yes%{ else }no%{ endif }"}"#,
        r#"{"s": "${"#,
        r#"{"n": "${NOMAD_PORT_http}"}"#,
        r#"{"n": 5}"#,
        r#"{"n": "5"}"#,
        r#"{"n": "0.1"}"#,
        r#"{"n": "x"}"#,
        r#"{"n": 0.5}"#,
        r#"{"n": 0.1}"#,
        r#"{"n": 1e2}"#,
        r#"{"n": 18446744073709551615}"#,
        r#"{"n": -9223372036854775809}"#,
        r#"{"n": true}"#,
        r#"{"n": "${1 + 2}"}"#,
        r#"{"n": "${int(2.7)}"}"#,
        r#"{"f": true}"#,
        r#"{"f": "true"}"#,
        r#"{"f": "1"}"#,
        r#"{"f": "0"}"#,
        r#"{"f": "yes"}"#,
        r#"{"f": 1}"#,
        r#"{"any": "x"}"#,
        r#"{"any": 200}"#,
        r#"{"any": null}"#,
        r#"{"any": [1, "a", null]}"#,
        r#"{"any": {"b": [true], "a": {}}}"#,
        r#"{"list": ["a", "b"]}"#,
        r#"{"list": ["a", 1, true, null]}"#,
        r#"{"list": "a"}"#,
        r#"{"list": {}}"#,
        r#"{"list": []}"#,
        r#"{"list": [["a"]]}"#,
        r#"{"set": [3, 1, "2", 1, 10]}"#,
        r#"{"set": []}"#,
        r#"{"map": {"b": 1, "a": "x", "c": null}}"#,
        r#"{"map": {}}"#,
        r#"{"map": [{"a": "b"}]}"#,
        r#"{"map": {"${name}": "y"}}"#,
        r#"{"map": {"a": {"b": 1}}}"#,
        r#"{"maps": [{"a": "b"}, {"c": 5}]}"#,
        r#"{"maps": {"a": "b"}}"#,
        r#"{"maps": []}"#,
        r#"{"obj": {"a": 1, "b": "2"}}"#,
        r#"{"obj": {"a": 1}}"#,
        r#"{"obj": {"a": 1, "b": 2, "c": 3}}"#,
        r#"{"obj": {"a": null, "b": null}}"#,
        r#"{"tup": ["a", "true"]}"#,
        r#"{"tup": ["a"]}"#,
        r#"{"tup": ["a", true, 1]}"#,
        r#"{"anys": [1, "a"]}"#,
        r#"{"anys": [1, 2]}"#,
        r#"{"anys": [true, "a"]}"#,
        r#"{"anys": [1, true]}"#,
        r#"{"anys": [1, {}]}"#,
        r#"{"anys": [{"a": 1}, {"a": "x"}]}"#,
        r#"{"anys": [{"a": 1}, {"b": "x"}]}"#,
        r#"{"anys": [["a"], ["b", 1]]}"#,
        r#"{"anys": [["a"], [1]]}"#,
        r#"{"anys": []}"#,
        r#"{"anys": [null]}"#,
        r#"{"anys": ["a", null]}"#,
        r#"{"anys": [null, 5, null]}"#,
        r#"{"one": {"a": "x"}}"#,
        r#"{"one": {}}"#,
        r#"{"one": [{"a": "x"}]}"#,
        r#"{"one": [{"a": "x"}, {"a": "y"}]}"#,
        r#"{"one": []}"#,
        r#"{"one": null}"#,
        r#"{"one": "x"}"#,
        r#"{"one": {"a": "x", "z": 1}}"#,
        r#"{"one": {"a": null}}"#,
        r#"{"one": [[{"a": "x"}]]}"#,
        r#"{"many": {"a": "x"}}"#,
        r#"{"many": [{"a": "x"}, {"a": "y", "b": 2}]}"#,
        r#"{"many": [{"a": "x"}, {"a": "y"}, {"a": "z"}, {"a": "u"}]}"#,
        r#"{"many": [{"a": "x"}, 5]}"#,
        r#"{"sets": [{"a": "y"}, {"a": "x", "b": 2}, {"a": "y"}, {"a": "x", "b": 10}, {"a": "x"}]}"#,
        r#"{"labeled": {"k": {"a": "x"}, "j": {"a": "y"}}}"#,
        r#"{"labeled": {"k": [{"a": "x"}]}}"#,
        r#"{"labeled": {"k": [{"a": "x"}, {"a": "y"}]}}"#,
        r#"{"labeled": [{"k": {"a": "x"}}, {"j": {"a": "y"}}]}"#,
        r#"{"labeled": [{"k": {"a": "x"}}, {"k": {"a": "y"}}]}"#,
        r#"{"labeled": {}}"#,
        r#"{"labeled": {"k": {}}}"#,
        r#"{"labeled": "x"}"#,
        r#"{"twice": {"k": {"j": {"a": "x"}, "i": {"a": "y"}}, "l": {"j": {"a": "z"}}}}"#,
        r#"{"twice": {"k": {"a": "x"}}}"#,
        r#"{"free": {"a": 1, "b": "2"}}"#,
        r#"{"free": {}}"#,
        r#"{"free": [{"a": 1}]}"#,
        r#"{"free": [{"a": 1}, {"b": 1}]}"#,
        r#"{"free": {"a": "x"}}"#,
        r#"{"free": {"a": null}}"#,
        r#"{"def": "x"}"#,
        r#"{"def": null}"#,
        r#"{"def": ""}"#,
        r#"{"renamed": "x"}"#,
        r#"{"other": "x"}"#,
        r#"{"p": "x"}"#,
        r#"{"unknown": 1}"#,
        r#"{"//": "a comment", "s": "x"}"#,
        r#"[{"s": "x"}, {"n": 1}]"#,
        r#"[{"s": "x"}, {"s": "y"}]"#,
        r#"["s"]"#,
        r#""s""#,
    ];
    let mut cases: Vec<Case> = bodies.iter().map(|body| Case { spec: all(), body: (*body).to_owned() }).collect();
    let more = [
        (object([("s", attr("s", "string", true))]), "{}"),
        (object([("s", attr("s", "string", true))]), r#"{"s": null}"#),
        (object([("b", block("b", true, nested()))]), "{}"),
        (object([("b", block_attrs("b", "string", true))]), "{}"),
        (object([("b", block_list("b", 2, 0, nested()))]), r#"{"b": {"a": "x"}}"#),
        (object([("d", with_default(attr("d", "number", false), Literal::string("5")))]), "{}"),
        (object([("d", with_default(attr("", "number", false), Literal::number(5)))]), "{}"),
        (object([("d", default_spec(attr("a", "string", false), attr("b", "string", false)))]), r#"{"b": "x"}"#),
        (object([("d", with_default(block("b", false, nested()), Literal::expression("{a = 1}")))]), "{}"),
        (object([("d", Literal::expression("[1, \"a\", null, 0.1, {b = 2, a = 1}]").into())]), "{}"),
        (object([("d", Literal::expression("jsondecode(\"[1,{\\\"a\\\":null}]\")").into())]), "{}"),
        (object([("d", Literal::expression("nobody").into())]), "{}"),
        (object([("d", Literal::expression("3m").into())]), "{}"),
        (object([("t", attr("t", "", false))]), "{}"),
        (object([("t", attr("t", "strings", false))]), "{}"),
        (object([("t", attr("t", "list(string", false))]), "{}"),
        (object([("t", attr("t", " map( list( number ) ) ", false))]), r#"{"t": {"k": ["1", 2]}}"#),
        (object([("t", attr("t", "object({\"a\" = string\n b = number})", false))]), r#"{"t": {"a": 1, "b": 2}}"#),
        (object([("t", attr("t", "map(any)", false))]), r#"{"t": {"a": 1, "b": "x"}}"#),
        (object([("t", attr("t", "map(any)", false))]), r#"{"t": {"a": [], "b": [1]}}"#),
        (object([("t", attr("t", "set(any)", false))]), r#"{"t": ["b", 1, "a"]}"#),
        (object([("t", attr("t", "set(list(string))", false))]), r#"{"t": [["b"], ["a", "z"], ["b"]]}"#),
        (object([("t", attr("t", "set(bool)", false))]), r#"{"t": [true, false, true]}"#),
        (object([("t", attr("t", "set(string)", false))]), r#"{"t": ["ä", "z", "Z", null, ""]}"#),
        (
            object([("l", block_list("l", 0, 0, object([("a", attr("a", "any", false))])))]),
            r#"{"l": [{"a": 1}, {"a": "x"}]}"#,
        ),
        (object([("l", block_list("l", 0, 0, object([("a", attr("a", "any", false))])))]), r#"{"l": [{"a": 1}, {}]}"#),
        (object([("l", block_list("l", 0, 0, object([("a", attr("a", "any", false))])))]), r#"{"l": [{}, {}]}"#),
        (
            object([("l", block_list("l", 0, 0, object([("a", attr("a", "any", false))])))]),
            r#"{"l": [{"a": 1}, {"a": {}}]}"#,
        ),
        (object([("f", block_attrs("f", "any", false))]), r#"{"f": {"a": 1, "b": 2}}"#),
        (object([("m", block_map("m", ["x"], attr("v", "string", true)))]), r#"{"m": {"k": {"v": 1}}}"#),
        (block("b", false, attr("v", "string", true)), r#"{"b": {"v": 1}}"#),
        (attr("v", "string", true), r#"{"v": 1}"#),
        (object::<&str>([]), "{}"),
        (object::<&str>([]), r#"{"x": 1}"#),
    ];
    cases.extend(more.map(|(spec, body)| Case { spec, body: body.to_owned() }));
    cases
}

fn kind() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![Just("string".to_owned()), Just("number".to_owned()), Just("bool".to_owned())];
    leaf.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|t| format!("list({t})")),
            inner.clone().prop_map(|t| format!("map({t})")),
            inner.clone().prop_map(|t| format!("set({t})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("object({{a = {a}, b = {b}}})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("tuple([{a}, {b}])")),
        ]
    })
}

fn random_spec() -> impl Strategy<Value = Spec> {
    let leaf = (kind(), prop::bool::weighted(0.2)).prop_map(|(kind, required)| attr("", &kind, required));
    leaf.prop_recursive(3, 12, 3, |inner| {
        let members = prop::collection::btree_map("[a-d]", inner, 1..4).prop_map(object);
        prop_oneof![
            members.clone(),
            (members.clone(), any::<bool>()).prop_map(|(m, required)| block("", required, m)),
            (members.clone(), 0..2u64, 0..3u64).prop_map(|(m, min, max)| block_list("", min, max, m)),
            members.clone().prop_map(|m| block_set("", 0, 0, m)),
            members.prop_map(|m| block_map("", ["l"], m)),
            kind().prop_map(|kind| block_attrs("", &kind, false)),
        ]
    })
    .prop_flat_map(|spec| {
        // Only an object gives its members their names.
        let members = prop::collection::btree_map("[a-d]", Just(spec), 1..3);
        members.prop_map(object)
    })
}

fn random_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        (-300..300i64).prop_map(|n| json!(n)),
        Just(json!(0.5)),
        Just(json!(0.1)),
        "[a-c1]{0,2}".prop_map(|s| json!(s)),
        Just(json!("true")),
        Just(json!("${name}")),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..3).prop_map(|items| json!(items)),
            3 => prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// A body that mostly fits the schema, so that deep values are compared and not only refusals.
fn fitting(spec: &Spec, runner: &mut TestRunner) -> Value {
    let mut draw = |strategy: BoxedStrategy<Value>| strategy.new_tree(runner).unwrap().current();
    let one_in = |n: u32, draw: &mut dyn FnMut(BoxedStrategy<Value>) -> Value| {
        draw((0..n).prop_map(|i| json!(i == 0)).boxed()) == json!(true)
    };
    if one_in(12, &mut draw) {
        return draw(random_json().boxed());
    }
    let count = draw((0..3u64).prop_map(|n| json!(n)).boxed()).as_u64().unwrap();
    match spec.block.as_ref().unwrap() {
        spec::Block::Object(o) => {
            let mut names: Vec<_> = o.attributes.iter().collect();
            names.sort_by_key(|(name, _)| (*name).clone());
            json!(names.into_iter().map(|(n, s)| (n.clone(), fitting(s, runner))).collect::<serde_json::Map<_, _>>())
        }
        spec::Block::Attr(a) => of_type(&a.r#type, runner),
        spec::Block::BlockValue(b) => fitting(b.nested.as_ref().unwrap(), runner),
        spec::Block::BlockAttrs(a) => json!({"k": of_type(&a.r#type, runner), "j": of_type(&a.r#type, runner)}),
        spec::Block::BlockList(b) => {
            json!((0..count).map(|_| fitting(b.nested.as_ref().unwrap(), runner)).collect::<Vec<_>>())
        }
        spec::Block::BlockSet(b) => {
            json!((0..count).map(|_| fitting(b.nested.as_ref().unwrap(), runner)).collect::<Vec<_>>())
        }
        spec::Block::BlockMap(b) => {
            json!({"x": fitting(b.nested.as_ref().unwrap(), runner), "y": fitting(b.nested.as_ref().unwrap(), runner)})
        }
        _ => Value::Null,
    }
}

fn of_type(kind: &str, runner: &mut TestRunner) -> Value {
    let leaf =
        prop_oneof![Just(json!("a")), Just(json!("1")), Just(json!(1)), Just(json!(null)), Just(json!("${name}"))];
    let leaf = leaf.new_tree(runner).unwrap().current();
    if kind.starts_with("list") || kind.starts_with("set") {
        let inner = &kind[kind.find('(').unwrap() + 1..kind.len() - 1];
        return json!([of_type(inner, runner), of_type(inner, runner)]);
    }
    if kind.starts_with("map") {
        let inner = &kind[4..kind.len() - 1];
        return json!({"x": of_type(inner, runner), "y": of_type(inner, runner)});
    }
    match kind {
        "bool" => json!(leaf == json!("1")),
        "number" if leaf.is_string() => json!("7"),
        "object" => json!({"a": leaf, "b": leaf}),
        _ => leaf,
    }
}

fn build() -> Option<&'static Path> {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    BINARY.get_or_init(|| golden::build("interop_hclspec")).as_deref()
}

#[test]
fn a4_configuration_becomes_the_bytes_that_a_go_host_sends() {
    let Some(binary) = build() else { return };
    let (good, bad) = compare(binary, &cases());
    assert!(good > 60 && bad > 40, "{good} good, {bad} bad: the samples test nothing");
}

#[test]
fn a4_random_configuration_becomes_the_bytes_that_a_go_host_sends() {
    let Some(binary) = build() else { return };
    let mut runner = TestRunner::deterministic();
    let cases: Vec<Case> = (0..1500)
        .map(|_| {
            let spec = random_spec().new_tree(&mut runner).unwrap().current();
            let body = fitting(&spec, &mut runner).to_string();
            Case { spec, body }
        })
        .collect();
    let (good, bad) = compare(binary, &cases);
    assert!(good > 150 && bad > 150, "{good} good, {bad} bad: the samples test nothing");
}
