//! `docs/api.md` is what the table of routes makes.
//! After a change of the table, `AGENTBIN_WRITE_DOCS=1 cargo test --lib api_md` writes it anew.

use std::fmt::Write as _;

use super::super::routes::TABLE;
use super::repository;

fn page() -> String {
    let mut text = "# The HTTP API of `agentbin agent`\n\n\
        The agent answers what Nomad's HTTP API answers for one node, in the same JSON. This page is made from the table of routes\n\
        (`src/agent/api/routes.rs`).\n\n\
        - PUT and POST are the same. Paths are Nomad's; an id with slashes may be written with `/` or `%2F`.\n\
        - Every answer has `X-Nomad-Index`. `index` and `wait` make a read wait until there is something newer; lists take `prefix`,\n\
        \x20 `filter`, `per_page`, `next_token` and `reverse`; `pretty` indents; `namespace=*` means all.\n\
        - An error is a status and a line of text.\n\
        - On the unix socket the agent's own user and root have the role `manage`, others the role of the socket. Over TCP each request\n\
        \x20 needs a token (`X-Nomad-Token` or `Authorization: Bearer`). `read` is part of `submit`, and `submit` of `manage`, which is equal\n\
        \x20 to root. `submit` registers and starts jobs of the drivers that the configuration lists (`exec` and `java` if it lists none),\n\
        \x20 which run at `isolation = \"strict\"` as `nobody`, with artifacts from `https://` or `http://` and the host volumes that it lists.\n\
        - `served`: from the current state. `fixed`: constant, as there is one server and one node. 501: refused, with the reason.\n\n\
        | method | path | role | answer | what |\n|---|---|---|---|---|\n"
        .to_owned();
    for route in TABLE {
        let (verb, kind) = (route.verb.as_str(), route.kind.as_str());
        let pattern = route.pattern.replace("*}", "}");
        writeln!(text, "| {verb} | `{pattern}` | {} | {kind} | {} |", route.role.as_str(), route.about).unwrap();
    }
    text
}

#[test]
fn api_md_is_what_the_table_makes() {
    let path = repository().join("docs/api.md");
    if std::env::var_os("AGENTBIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page(),
        "docs/api.md is not what the table makes; AGENTBIN_WRITE_DOCS=1 cargo test --lib api_md writes it"
    );
}

#[test]
fn each_route_stands_in_the_table_once() {
    for (n, route) in TABLE.iter().enumerate() {
        let again = TABLE[n + 1..].iter().any(|other| (other.verb, other.pattern) == (route.verb, route.pattern));
        assert!(!again, "{:?} {}", route.verb, route.pattern);
    }
}
