//! References that stay in the text until the task starts (mission N8).

use super::{Given, around_task, task_of, value_of};

/// Upstream: Interpolation, `UndefinedVariables`.
#[test]
fn n8_runtime_references_keep_their_spelling() {
    for (expression, expected) in [
        ("\"${NOMAD_PORT_http}\"", "${NOMAD_PORT_http}"),
        ("\"addr=${NOMAD_IP_http}:${NOMAD_PORT_http}\"", "addr=${NOMAD_IP_http}:${NOMAD_PORT_http}"),
        ("\"${attr.kernel.name}\"", "${attr.kernel.name}"),
        ("attr.kernel.name", "${attr.kernel.name}"),
        ("NOMAD_TASK_DIR", "${NOMAD_TASK_DIR}"),
        ("\"${node.unique.id}-${meta.x}-${env.HOME}\"", "${node.unique.id}-${meta.x}-${env.HOME}"),
        ("\"${ meta.x }\"", "${ meta.x }"),
        ("\"a ${   meta.  x[ \"k\"].5  } b\"", "a ${   meta.  x[ \"k\"].5  } b"),
        ("\"${~ meta.x ~}\"", "${meta.x}"),
        ("\"${ (meta.x) }\"", "${meta.x}"),
        ("\"${meta[\"a-b\"]}\"", "${meta[\"a-b\"]}"),
        ("\"${attr.list[0]}\"", "${attr.list[0]}"),
        ("\"$${NOMAD_X}\"", "${NOMAD_X}"),
        ("\"${attr.driver.docker.volumes.enabled ? 1 : 2}\"", ""),
        ("\"${true ? NOMAD_A : NOMAD_B}\"", "${NOMAD_A}"),
        ("join(\",\", [NOMAD_A, \"b\"])", "${NOMAD_A},b"),
    ] {
        match value_of(&Given::default(), expression) {
            Ok(value) => assert_eq!(value, serde_json::json!(expected), "{expression}"),
            Err(e) => {
                assert_eq!(expected, "", "{expression}: {e}");
                assert!(e.contains("a bool is needed here, not the runtime reference"), "{e}");
            }
        }
    }
}

#[test]
fn n8_runtime_references_and_values_mix_in_one_string() {
    let text = format!(
        "locals {{\nname = \"n\"\n}}\nvariable \"v\" {{ default = 7 }}\n{}",
        around_task("env {\nX = \"${local.name}-${var.v}-${NOMAD_ALLOC_ID}\"\n}")
    );
    assert_eq!(Given::default().job(&text).groups[0].tasks[0].env["X"], "n-7-${NOMAD_ALLOC_ID}");
    let heredoc =
        task_of("template {\ndestination = \"${NOMAD_SECRETS_DIR}/x\"\ndata = <<EOT\nport ${NOMAD_PORT_db}\nEOT\n}");
    assert_eq!(heredoc.templates[0].data, "port ${NOMAD_PORT_db}\n");
    assert_eq!(heredoc.templates[0].destination, "${NOMAD_SECRETS_DIR}/x");
}

#[test]
fn computed_steps_on_runtime_references_are_errors() {
    for expression in ["meta[NOMAD_X]", "meta[*].a", "attr.*.b"] {
        let error = value_of(&Given::default(), expression).unwrap_err();
        assert!(error.starts_with("job.hcl:5: ") && error.contains("known only when the task runs"), "{error}");
    }
}

/// An unknown member of something known is a mistake, not a runtime reference.
#[test]
fn members_of_known_values_must_exist() {
    let given = Given::default();
    for (expression, expected) in [
        ("var.nope", "undeclared variable \"nope\"; declare it with a variable block"),
        ("\"${var.nope.a}\"", "undeclared variable \"nope\"; declare it with a variable block"),
        ("local.nope", "undeclared local value \"nope\"; declare it in a locals block"),
    ] {
        assert_eq!(value_of(&given, expression).unwrap_err(), format!("job.hcl:5: {expected}"));
    }
    let text = format!("variable \"a\" {{ default = {{ user = 1 }} }}\n{}", around_task("user = var.a.uesr"));
    assert_eq!(given.errors(&text), ["job.hcl:5: there is no attribute \"uesr\" here (did you mean \"user\"?)"]);
}
