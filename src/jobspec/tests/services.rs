//! Services and their checks (J3).

use std::time::Duration;

use super::{Given, around_group, around_task, errors, job, task_of};
use crate::spec::{AddressMode, CheckKind, CheckRestart, CheckStatus, OnUpdate, Pos, ServiceProvider};

const FULL: &str = r#"
service {
  name = "${JOB}-web"
  provider = "nomad"
  port = "http"
  tags = ["a", "${NOMAD_ALLOC_ID}"]
  canary_tags = ["c"]
  meta { k = "v" }
  canary_meta { k = "c" }
  tagged_addresses { wan = "192.0.2.1" }
  address = "web.example"
  address_mode = "host"
  enable_tag_override = true
  on_update = "ignore_warnings"
  weights {
    passing = 3
  }
  check_restart {
    limit = 3
    ignore_warnings = true
  }
  check {
    name = "alive"
    type = "http"
    protocol = "https"
    path = "/h"
    method = "POST"
    body = "b"
    tls_skip_verify = true
    header {
      Authorization = ["Basic x", "y"]
      X-One = "1"
    }
    interval = "10s"
    timeout = "2s"
    initial_status = "warning"
    success_before_passing = 2
    failures_before_critical = 3
    failures_before_warning = 1
    check_restart {
      grace = "90s"
    }
  }
  check {
    type = "grpc"
    port = 9000
    grpc_service = "s"
    grpc_use_tls = true
    interval = "1s"
    timeout = "1s"
    on_update = "ignore"
  }
}
"#;

#[test]
fn j3_every_key_of_a_service_is_read() {
    let job = job(&around_group(&format!("network {{\nport \"http\" {{}}\n}}\n{FULL}")));
    let service = &job.groups[0].services[0];
    assert_eq!((&*service.name, service.provider, &*service.port), ("${JOB}-web", ServiceProvider::Nomad, "http"));
    assert_eq!((&service.tags[1], &service.canary_tags[0]), (&"${NOMAD_ALLOC_ID}".to_owned(), &"c".to_owned()));
    assert_eq!(
        (&*service.meta["k"], &*service.canary_meta["k"], &*service.tagged_addresses["wan"]),
        ("v", "c", "192.0.2.1")
    );
    assert_eq!((&*service.address, service.address_mode), ("web.example", AddressMode::Host));
    assert_eq!((service.enable_tag_override, service.weights), (true, Some((3, 1))));
    let [alive, grpc] = &service.checks[..] else { panic!("{service:?}") };
    let CheckKind::Http(http) = &alive.kind else { panic!("{alive:?}") };
    assert!(http.tls && http.tls_skip_verify);
    assert_eq!((&*http.path, &*http.method, &*http.body), ("/h", "POST", "b"));
    assert_eq!((http.headers["Authorization"].len(), &*http.headers["X-One"][0]), (2, "1"));
    assert_eq!((alive.interval, alive.timeout), (Duration::from_secs(10), Duration::from_secs(2)));
    assert_eq!(alive.initial_status, Some(CheckStatus::Warning));
    assert_eq!(
        (alive.success_before_passing, alive.failures_before_critical, alive.failures_before_warning),
        (2, 3, Some(1))
    );
    let grace = Duration::from_secs(90);
    assert_eq!(
        alive.restart,
        Some(CheckRestart { limit: 3, grace, ignore_warnings: true }),
        "the service's, and its own"
    );
    assert_eq!((alive.on_update, grpc.on_update), (OnUpdate::IgnoreWarnings, OnUpdate::Ignore));
    assert_eq!((&*grpc.name, &*grpc.port), ("service: \"${JOB}-web\" check", "9000"));
    assert!(matches!(&grpc.kind, CheckKind::Grpc(grpc) if grpc.tls && grpc.service == "s"));
}

#[test]
fn j3_what_is_not_given_is_as_nomad_has_it() {
    let task = task_of(
        "service {\ncheck {\ntype = \"script\"\ncommand = \"/bin/true\"\ninterval = \"10s\"\ntimeout = \"2s\"\n}\n}",
    );
    let service = &task.services[0];
    assert_eq!((&*service.name, service.provider), ("j-g-t", ServiceProvider::Consul));
    assert_eq!((service.address_mode, service.on_update), (AddressMode::Auto, OnUpdate::RequireHealthy));
    let check = &service.checks[0];
    assert_eq!((check.restart, check.initial_status), (None, Some(CheckStatus::Critical)), "as Consul begins");
    assert_eq!(job(&around_group("service {\n}")).groups[0].services[0].name, "j-g");
    let parsed = Given::default().parse(&around_group("service {\n}\nservice {\nname = \"b\"\n}")).unwrap();
    assert_eq!(parsed.warnings.len(), 1, "said once: {:?}", parsed.warnings);
}

#[test]
fn j3_what_cannot_work_is_refused_with_its_fix() {
    let service = |inside: &str| {
        around_group(&format!("network {{\nport \"http\" {{}}\n}}\nservice {{\nname = \"s\"\n{inside}\n}}"))
    };
    let check = |inside: &str| service(&format!("port = \"http\"\ncheck {{\n{inside}\n}}"));
    let times = "interval = \"10s\"\ntimeout = \"2s\"";
    for (text, expected) in [
        (
            service("port = \"htp\""),
            "names the port \"htp\", which is not a label of a network and no number (did you mean \"http\"?)",
        ),
        (service("provider = \"nomd\""), "unknown provider \"nomd\" (did you mean \"nomad\"?)"),
        (service("address_mode = \"driver\""), "move the service into its task"),
        (service("address_mode = \"alloc_ipv4\""), "did you mean \"alloc_ipv6\"?"),
        (service("task = \"u\""), "names the task \"u\", which is not there"),
        (service("on_update = \"x\""), "unknown on_update \"x\""),
        (check(times), "has no type; add type = \"tcp\""),
        (check(&format!("type = \"ping\"\n{times}")), "unknown type of check \"ping\""),
        (check(&format!("type = \"http\"\n{times}")), "has no path; add path = \"/\""),
        (check(&format!("type = \"script\"\n{times}")), "has no command"),
        (check("type = \"tcp\"\ntimeout = \"2s\""), "has no interval; add interval = \"10s\""),
        (
            check("type = \"tcp\"\ninterval = \"10s\"\ntimeout = \"1ms\""),
            "timeout in check of service of group \"g\" must be at least 1s",
        ),
        (
            check(&format!("type = \"tcp\"\nexpose = true\n{times}")),
            "expose in check of service of group \"g\" needs a proxy",
        ),
        (check(&format!("type = \"tcp\"\ninitial_status = \"x\"\n{times}")), "unknown initial_status \"x\""),
        (check(&format!("type = \"tcp\"\nport = \"no\"\n{times}")), "names the port \"no\""),
        (service(&format!("check {{\ntype = \"tcp\"\n{times}\n}}")), "has no port, and its service has none"),
        (around_task("service {\nname = \"a b\"\n}"), "\"a b\" cannot be the name of a service"),
        (around_group("service {\nname = \"a\"\n}\nservice {\nname = \"a\"\n}"), "duplicate service \"a\""),
    ] {
        let found = errors(&text);
        assert!(matches!(&found[..], [one] if one.contains(expected)), "{text}: {found:?}");
    }
}

#[test]
fn j3_the_form_of_the_http_api_says_the_same() {
    let api = r#"{"Job": {"ID": "j", "TaskGroups": [{"Name": "g", "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
      "Services": [{"Name": "${JOB}-web", "Provider": "nomad", "PortLabel": "http", "Tags": ["a", "${NOMAD_ALLOC_ID}"],
        "CanaryTags": ["c"], "Meta": {"k": "v"}, "CanaryMeta": {"k": "c"}, "TaggedAddresses": {"wan": "192.0.2.1"},
        "Address": "web.example", "AddressMode": "host", "EnableTagOverride": true, "OnUpdate": "ignore_warnings",
        "Weights": {"Passing": 3, "Warning": 1}, "CheckRestart": {"Limit": 3, "Grace": null, "IgnoreWarnings": true},
        "Cluster": "default", "Connect": null, "Checks": [
          {"Name": "alive", "Type": "http", "Protocol": "https", "Path": "/h", "Method": "POST", "Body": "b", "TLSSkipVerify": true,
            "Header": {"Authorization": ["Basic x", "y"], "X-One": ["1"]}, "Interval": 10000000000, "Timeout": 2000000000,
            "InitialStatus": "warning", "SuccessBeforePassing": 2, "FailuresBeforeCritical": 3, "FailuresBeforeWarning": 1,
            "CheckRestart": {"Limit": 0, "Grace": 90000000000, "IgnoreWarnings": false}, "Expose": false, "OnUpdate": ""},
          {"Type": "grpc", "PortLabel": "9000", "GRPCService": "s", "GRPCUseTLS": true, "Interval": 1000000000,
            "Timeout": 1000000000, "OnUpdate": "ignore"}]}],
      "Tasks": [{"Name": "t", "Driver": "exec"}]}]}}"#;
    let native = job(&around_group(&format!("network {{\nport \"http\" {{}}\n}}\n{FULL}")));
    let (mut given, mut expected) = (job(api).groups.remove(0).services, native.groups[0].services.clone());
    for service in given.iter_mut().chain(&mut expected) {
        service.pos = Pos::default();
        service.checks.iter_mut().for_each(|check| check.pos = Pos::default());
    }
    assert_eq!(given, expected);
}
