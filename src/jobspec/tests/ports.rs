//! Ports of groups, and those of tasks in every form that old files have.

use super::{Given, around_group, around_task, errors, job};
use crate::spec::{Network, NetworkMode};

/// Label, static number, `to`, host network.
type Row<'a> = (&'a str, Option<u16>, Option<u16>, Option<&'a str>);

fn rows(network: &Network) -> Vec<Row<'_>> {
    let names = network.ports.iter().map(|port| port.host_network.as_ref().map(|network| &*network.name));
    let rows = network.ports.iter().zip(names).map(|(port, name)| (&*port.label, port.static_port, port.to, name));
    rows.collect()
}

#[test]
fn j3_a_port_has_a_number_inside_and_a_network_of_the_host() {
    for (port, expected) in [
        ("", ("p", None, None, None)),
        ("to = 6379", ("p", None, Some(6379), None)),
        ("to = \"6379\"", ("p", None, Some(6379), None)),
        ("to = -1", ("p", None, None, None)),
        ("static = 80\nto = 0", ("p", Some(80), None, None)),
        ("static = 80\nto = 8080", ("p", Some(80), Some(8080), None)),
        ("static = 80\nto = 80", ("p", Some(80), Some(80), None)),
        ("host_network = \"lan\"", ("p", None, None, Some("lan"))),
        ("host_network = \"default\"", ("p", None, None, None)),
        ("host_network = \"\"", ("p", None, None, None)),
        ("host_network = \"${meta.net}\"", ("p", None, None, Some("${meta.net}"))),
    ] {
        let job = job(&around_group(&format!("network {{\nport \"p\" {{\n{port}\n}}\n}}")));
        assert_eq!(rows(job.groups[0].network.as_ref().unwrap()), [expected], "{port}");
    }
    let shared = "network {\nport \"a\" { static = 80 }\nport \"b\" {\nstatic = 80\nignore_collision = true\n}\n}";
    let shared = job(&around_group(shared)).groups.remove(0).network.unwrap();
    assert_eq!(shared.ports.iter().map(|port| port.ignore_collision).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn j3_ports_that_cannot_be_are_mistakes() {
    for (text, expected) in [
        (
            around_group("network {\nport \"p\" { to = 65536 }\n}"),
            "job.hcl:4: \"to\" in port \"p\" must be at most 65535, not 65536",
        ),
        (
            around_group("network {\nport \"p\" { to = -2 }\n}"),
            "job.hcl:4: \"to\" in port \"p\" must be at least -1, not -2",
        ),
        (
            around_task("resources {\nnetwork {\nport \"a\" {}\nport \"a\" {}\n}\n}"),
            "job.hcl:7: duplicate port \"a\"; it stands in line 6 already",
        ),
        (
            around_task("resources {\nnetwork {\nport \"a\" { static = 80 }\nport \"b\" { static = 80 }\n}\n}"),
            "job.hcl:7: port \"b\" has the static port 80 of port \"a\"; give one of them another",
        ),
        (
            around_group(
                "network {\nport \"a\" {\nstatic = 80\nhost_network = \"lan\"\n}\nport \"b\" {\nstatic = 80\n\
                 host_network = \"lan\"\n}\n}",
            ),
            "job.hcl:8: port \"b\" has the static port 80 of port \"a\"; give one of them another",
        ),
        (
            around_task("resources {\nnetwork {\n}\nnetwork {\n}\n}"),
            "job.hcl:7: resources of task \"t\" has more than one network; keep one",
        ),
    ] {
        assert_eq!(errors(&text), [expected], "{text}");
    }
    // The group's and the task's, and two groups of one task each as old files have them.
    let both = "job \"j\" {\ngroup \"g\" {\nnetwork {\nport \"a\" { static = 80 }\n}\ntask \"t\" {\ndriver = \"exec\"\nresources {\n\
                network {\nport \"a\" {}\nport \"b\" { static = 80 }\n}\n}\n}\n}\n}";
    assert_eq!(
        errors(both),
        [
            "job.hcl:10: duplicate port \"a\"; it stands in line 4 already",
            "job.hcl:11: port \"b\" has the static port 80 of port \"a\"; give one of them another"
        ]
    );
    let networks = "network {\nport \"a\" {\nstatic = 80\nhost_network = \"lan\"\n}\nport \"b\" { static = 80 }\n}";
    assert_eq!(job(&around_group(networks)).groups[0].network.as_ref().unwrap().ports.len(), 2, "two addresses");
}

#[test]
fn j3_a_task_may_have_a_network_of_its_own_in_all_old_forms() {
    let ports = [("db", None, Some(6379), None), ("adm", Some(8080), None, None)];
    let hcl =
        |inner: &str| format!("job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{\ndriver = \"docker\"\n{inner}\n}}\n}}\n}}");
    let block = |ports: &str| hcl(&format!("resources {{\ncpu = 20\nnetwork {{\nmbits = \"10\"\n{ports}\n}}\n}}"));
    let json = |resources: &str| {
        format!(
            r#"{{"job": {{"j": {{"group": {{"g": {{"task": {{"t": {{"driver": "docker", "resources": {resources}}}}}}}}}}}}}}}"#
        )
    };
    let api = r#"{"Job": {"ID": "j", "Name": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "docker",
        "Resources": {"CPU": 20, "Networks": [{"Mode": "host", "MBits": 10, "DynamicPorts": [{"Label": "db", "To": 6379}],
        "ReservedPorts": [{"Label": "adm", "Value": 8080}]}]}}]}]}}"#;
    for text in [
        block("port \"db\" { to = 6379 }\nport \"adm\" { static = 8080 }"),
        block("port \"db\" {\nto = \"6379\"\n}\nport adm {\nstatic = \"8080\"\n}"),
        block("port \"db\" { to = 6379 }\nreserved_ports \"adm\" { static = 8080 }"),
        block(
            "dynamic \"port\" {\nfor_each = { db = [0, 6379], adm = [8080, 0] }\nlabels = [port.key]\ncontent {\n\
               static = port.value[0]\nto = port.value[1]\n}\n}",
        ),
        json(r#"{"cpu": 20, "network": {"mbits": 10, "port": {"db": {"to": 6379}, "adm": {"static": 8080}}}}"#),
        json(r#"[{"cpu": 20, "network": [{"port": [{"db": [{"to": 6379}]}, {"adm": [{"static": 8080}]}]}]}]"#),
        api.to_owned(),
    ] {
        let job = job(&text);
        let task = &job.groups[0].tasks[0];
        assert_eq!(task.resources.cpu_mhz, 20, "{text}");
        let mut found = rows(task.network.as_ref().unwrap_or_else(|| panic!("no network in {text}")));
        found.sort_by_key(|(label, ..)| *label != "db");
        assert_eq!(found, ports, "{text}");
        assert!(job.groups[0].network.is_none());
    }
    // A task right below the job, too.
    let lone = "job \"j\" {\ntask \"t\" {\ndriver = \"exec\"\nresources {\nnetwork {\nport \"http\" {}\n}\n}\n}\n}";
    assert_eq!(rows(job(lone).groups[0].tasks[0].network.as_ref().unwrap()), [("http", None, None, None)]);
}

#[test]
fn j3_what_a_task_cannot_say_of_its_network_has_no_effect() {
    let text = around_task(
        "resources {\nnetwork {\nmode = \"bridge\"\nmbits = 10\nport \"http\" {\nhost_network = \"lan\"\n}\n}\n}",
    );
    let parsed = Given::default().parse(&text).unwrap();
    assert_eq!(parsed.refusals, []);
    assert_eq!(rows(parsed.job.groups[0].tasks[0].network.as_ref().unwrap()), [("http", None, None, None)]);
    assert_eq!(
        parsed.warnings,
        [
            "job.hcl:5: network in resources is deprecated; move it to the group",
            "job.hcl:6: network mode \"bridge\" in resources has no effect: a task's own network is the host's; move it to the group",
            "job.hcl:7: mbits has no effect with agentbin run",
            "job.hcl:9: host_network has no effect with agentbin run: a task's own ports are on the default network; move the network to the group",
        ]
    );
}

/// What `nomad job init -short` writes, in its parts that matter here.
#[test]
fn j3_the_example_job_has_nothing_that_run_refuses() {
    let text = "job \"example\" {\ngroup \"cache\" {\nnetwork {\nport \"db\" {\nto = 6379\n}\n}\ntask \"redis\" {\n\
                driver = \"docker\"\nconfig {\nimage = \"redis:7\"\nports = [\"db\"]\nauth_soft_fail = true\n}\n\
                identity {\nenv = true\nfile = true\n}\nresources {\ncpu = 500\nmemory = 256\n}\n}\n}\n}";
    assert_eq!(Given::default().parse(text).unwrap().refusals, []);
}

/// G1: what a group's network says besides its ports, in the form of job files and in that of the HTTP API.
#[test]
fn g1_modes_dns_and_arguments_are_read() {
    let text = around_group(
        "network {\nmode = \"cni/lab\"\nhostname = \"h\"\ndns {\nservers = [\"192.0.2.1\"]\nsearches = [\"x\"]\noptions = [\"ndots:2\"]\n}\n\
         cni {\nargs = { A = \"b\" }\n}\n}",
    );
    let api = r#"{"ID": "j", "TaskGroups": [{"Name": "g", "Networks": [{"Mode": "cni/lab", "Hostname": "h",
        "DNS": {"Servers": ["192.0.2.1"], "Searches": ["x"], "Options": ["ndots:2"]}, "CNI": {"Args": {"A": "b"}}}],
        "Tasks": [{"Name": "t", "Driver": "exec", "Config": {"command": "/bin/true"}}]}]}"#;
    for text in [text.as_str(), api] {
        let parsed = Given::default().parse(text).unwrap();
        assert!(parsed.refusals.is_empty(), "{:?}", parsed.refusals);
        let network = parsed.job.groups[0].network.clone().unwrap();
        assert_eq!((network.mode, network.hostname.as_str()), (NetworkMode::Cni("lab".to_owned()), "h"));
        let dns = network.dns.unwrap();
        assert_eq!([dns.servers, dns.searches, dns.options], [["192.0.2.1"], ["x"], ["ndots:2"]]);
        assert_eq!(network.cni_args, [("A".to_owned(), "b".to_owned())].into());
    }
    for (mode, expected) in [("bridge", NetworkMode::Bridge), ("none", NetworkMode::None), ("host", NetworkMode::Host)]
    {
        let parsed = Given::default().parse(&around_group(&format!("network {{\nmode = \"{mode}\"\n}}"))).unwrap();
        assert!(parsed.refusals.is_empty() && parsed.warnings.is_empty(), "{mode}");
        assert_eq!(parsed.job.groups[0].network.as_ref().unwrap().mode, expected);
    }
}
