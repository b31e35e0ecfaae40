//! Files that are refused, each with the exact line and text.

use super::{Given, around_group, around_task, errors};

#[test]
fn what_would_change_behaviour_is_refused_by_name() {
    let job =
        |inside: &str| format!("job \"j\" {{\n{inside}\ngroup \"g\" {{\ntask \"t\" {{ driver = \"exec\" }}\n}}\n}}\n");
    let table = [
        (job("vault {\n}"), "job.hcl:2: vault in job \"j\""),
        (job("secret \"s\" {\n}"), "job.hcl:2: secret in job \"j\""),
        (around_task("vault {\n}"), "job.hcl:4: vault in task \"t\""),
        (around_task("secret \"s\" {\n}"), "job.hcl:4: secret in task \"t\""),
        (around_task("kind = \"connect-proxy:x\""), "job.hcl:4: kind in task \"t\""),
        (around_task("resources {\ndevice \"d\" {\n}\n}"), "job.hcl:5: device in resources of task \"t\""),
        (around_task("resources {\nnuma {\n}\n}"), "job.hcl:5: numa in resources of task \"t\""),
    ];
    for (text, expected) in table {
        assert_eq!(errors(&text), [format!("{expected} is not supported yet by agentbin run; remove it")], "{text}");
    }
}

#[test]
fn c3_a_task_asks_for_cpu_or_for_cores() {
    assert_eq!(
        errors(&around_task("resources {\ncores = 2\ncpu = 100\n}")),
        ["job.hcl:5: resources of task \"t\" can ask for cpu or for cores, not for both"]
    );
    assert_eq!(
        errors(&around_task("resources {\ncores = -1\n}")),
        ["job.hcl:5: \"cores\" in resources of task \"t\" must be at least 0, not -1"]
    );
}

#[test]
fn refusals_with_a_mend_of_their_own() {
    let table = [
        (
            around_group("max_run_duration = \"1h\""),
            "job.hcl:3: max_run_duration in group \"g\" is not supported yet by agentbin run; use --timeout",
        ),
        (
            around_group("network {\nmode = \"driver\"\n}"),
            "job.hcl:4: network mode \"driver\" is not supported by agentbin run; use \"host\", \"bridge\", \"none\" or \"cni/NAME\"",
        ),
        (
            around_group("network {\nhostname = \"h\"\n}"),
            "job.hcl:4: hostname in network needs mode \"bridge\", \"none\" or \"cni/NAME\"; remove it",
        ),
        (
            around_group("network {\nmode = \"cni/x\"\ncni {\nargs = { a = \"b=c\" }\n}\n}"),
            "job.hcl:3: args in cni must have no \";\", \"=\" or NUL",
        ),
        (
            around_group("network {\nmode = \"cni/x\"\ncni {\nargs = { a = \"b;c\" }\n}\n}"),
            "job.hcl:3: args in cni must have no \";\", \"=\" or NUL",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(errors(&text), [expected], "{text}");
    }
}

#[test]
fn artifacts_that_are_not_fetched_are_refused_with_the_reason() {
    for (inside, expected) in [
        ("source = \"hg::https://h/x\"", "5: source in artifact of task \"t\": Mercurial"),
        ("source = \"s3://bucket/key\"", "5: source in artifact of task \"t\": s3:// is not a URL"),
        ("source = \"ftp://h/x\"", "5: source in artifact of task \"t\": unknown scheme \"ftp://\""),
        ("source = \"git::file:///srv/repo\"", "5: source in artifact of task \"t\": git over file://"),
        (
            "source = \"file://host/x\"",
            "5: source in artifact of task \"t\": a file URL names an absolute path; write file:///path",
        ),
        (
            "source = \"https://h/x\"\noptions {\nchecksum = \"md5:0\"\n}",
            "6: options in artifact of task \"t\": the checksum",
        ),
        (
            "source = \"github.com/a/b\"\noptions {\ndepht = \"1\"\n}",
            "6: options in artifact of task \"t\": unknown option \"depht\"",
        ),
        ("source = \"https://h/x.gz\"", "4: mode in artifact of task \"t\": what is packed in x.gz is a single file"),
        ("source = \"https://h/x\"\nmode = \"dir\"", "6: mode in artifact of task \"t\": \"dir\" needs an archive"),
        (
            "source = \"github.com/a/b\"\nheaders {\na = \"b\"\n}",
            "6: headers in artifact of task \"t\": they are for http",
        ),
        ("", "4: source in artifact of task \"t\": it must not be empty"),
    ] {
        let errors = errors(&around_task(&format!("artifact {{\n{inside}\n}}")));
        assert!(errors.len() == 1 && errors[0].starts_with(&format!("job.hcl:{expected}")), "{inside}: {errors:?}");
    }
    for fine in [
        "source = \"https://h:${NOMAD_PORT_p}/${NOMAD_META_v}/x.tar.gz\"\noptions {\nchecksum = \"${NOMAD_META_sum}\"\n}",
        "source = \"${NOMAD_META_source}\"",
        "source = \"https://h/x\"\nheaders {\nX-Token = \"${NOMAD_META_t}\"\n}\noptions {\narchive = false\n}",
        "source = \"git@github.com:a/b?ref=v1\"\noptions {\ndepth = 1\n}",
        "source = \"https://h/x.gz\"\nmode = \"file\"\ndestination = \"local/x\"\ninsecure = true",
    ] {
        let parsed = Given::default().parse(&around_task(&format!("artifact {{\n{fine}\n}}"))).unwrap();
        assert!(parsed.refusals.is_empty() && parsed.warnings.is_empty(), "{fine}: {parsed:?}");
    }
}

#[test]
fn unknown_names_are_reported_with_the_nearest_known_one() {
    let table = [
        (around_task("comand = \"x\""), "job.hcl:4: unsupported argument \"comand\" in task \"t\"; remove it"),
        (around_task("usr = \"x\""), "job.hcl:4: unsupported argument \"usr\" in task \"t\" (did you mean \"user\"?)"),
        (
            around_task("kill_timout = \"5s\""),
            "job.hcl:4: unsupported argument \"kill_timout\" in task \"t\" (did you mean \"kill_timeout\"?)",
        ),
        (
            around_task("resource {\n}"),
            "job.hcl:4: unsupported block \"resource\" in task \"t\" (did you mean \"resources\"?)",
        ),
        (around_task("user {\n}"), "job.hcl:4: \"user\" in task \"t\" is an argument; write user = ..."),
        (around_task("logs = {}"), "job.hcl:4: \"logs\" in task \"t\" is a block; write logs { ... }"),
        (
            around_task("resources {\nmemroy = 10\n}"),
            "job.hcl:5: unsupported argument \"memroy\" in resources of task \"t\" (did you mean \"memory\"?)",
        ),
        (
            "jobb \"x\" {\n}\n".to_owned(),
            "job.hcl:1: unsupported block \"jobb\" in the job file (did you mean \"job\"?)",
        ),
        ("x = 1\n".to_owned(), "job.hcl:1: unsupported argument \"x\" in the job file; remove it"),
    ];
    for (text, expected) in table {
        assert_eq!(errors(&text), [expected], "{text}");
    }
}

#[test]
fn rules_about_jobs_and_groups() {
    let table = [
        (String::new(), "job.hcl:1: the file has no job; add job \"name\" { ... }"),
        ("job \"a b\" {\ngroup \"g\" {\ntask \"t\" { driver = \"exec\" }\n}\n}\n".to_owned(),
         "job.hcl:1: the job's id must not be empty or contain spaces; choose another id"),
        ("job \"j\" {\n}\n".to_owned(), "job.hcl:1: job \"j\" has no group; add group \"name\" { ... }"),
        ("job {\n}\n".to_owned(), "job.hcl:1: job in the job file takes one label, its name"),
        (format!("{}job \"k\" {{\n}}\n", around_task("")), "job.hcl:9: the file has more than one job; the first stands in line 1"),
        ("job \"j\" {\ntype = \"cron\"\ngroup \"g\" {\ntask \"t\" { driver = \"exec\" }\n}\n}\n".to_owned(),
         "job.hcl:2: unknown job type \"cron\"; use service, batch, system or sysbatch"),
        ("job \"j\" {\npriority = 101\ngroup \"g\" {\ntask \"t\" { driver = \"exec\" }\n}\n}\n".to_owned(),
         "job.hcl:2: \"priority\" in job \"j\" must be at most 100, not 101"),
        ("job \"j\" {\ntype = \"system\"\ngroup \"g\" {\ncount = 2\ntask \"t\" { driver = \"exec\" }\n}\n}\n".to_owned(),
         "job.hcl:4: \"count\" in group \"g\" must be 1, because the job is a system job"),
        ("job \"j\" {\ngroup \"g\" {\ntask \"t\" { driver = \"exec\" }\n}\ngroup \"g\" {\ntask \"t\" { driver = \"exec\" }\n}\n}\n".to_owned(),
         "job.hcl:5: duplicate group \"g\"; it stands in line 2 already"),
        ("job \"j\" {\ngroup \"g\" {\n}\n}\n".to_owned(), "job.hcl:2: group \"g\" has no task; add task \"name\" { ... }"),
        (around_group("task \"t\" {\ndriver = \"exec\"\n}"), "job.hcl:6: duplicate task \"t\"; it stands in line 3 already"),
        (around_group("count = -1"), "job.hcl:3: \"count\" in group \"g\" must be at least 0, not -1"),
        (around_group("count = \"many\""), "job.hcl:3: \"count\" in group \"g\" must be a whole number, not \"many\""),
        (around_group("count = 1.5"), "job.hcl:3: \"count\" in group \"g\" must be a whole number, not number"),
        (around_group("network {\n}\nnetwork {\n}"), "job.hcl:5: group \"g\" has more than one network; keep one"),
        (around_group("network {\nport \"a\" {}\nport \"a\" {}\n}"), "job.hcl:5: duplicate port \"a\"; it stands in line 4 already"),
        (around_group("network {\nport \"a\" { static = 80 }\nport \"b\" { static = 80 }\n}"),
         "job.hcl:5: port \"b\" has the static port 80 of port \"a\"; give one of them another"),
        (around_group("network {\nport \"a\" { static = 70000 }\n}"), "job.hcl:4: \"static\" in port \"a\" must be at most 65535, not 70000"),
        (around_group("meta {\n}\nmeta {\n}"), "job.hcl:5: Duplicate meta block in group \"g\"; it stands in line 3 already"),
        (around_group("restart {\ninterval = \"4s\"\n}"), "job.hcl:3: the restart interval must be at least 5s, not 4s"),
        (around_group("restart {\nattempts = 0\nmode = \"delay\"\n}"),
         "job.hcl:3: restart mode \"delay\" needs at least 1 attempt; use mode \"fail\" for no restarts"),
        (around_group("restart {\nattempts = 3\ndelay = \"4s\"\ninterval = \"11s\"\n}"),
         "job.hcl:3: 3 restarts with a delay of 4s do not fit into the restart interval of 11s; make the interval longer"),
        (around_group("restart {\nmode = \"never\"\n}"), "job.hcl:4: unknown restart mode \"never\"; use fail or delay"),
        (around_group("ephemeral_disk { size = 5 }"),
         "job.hcl:3: \"size\" in ephemeral_disk of group \"g\" must be at least 10, not 5"),
    ];
    for (text, expected) in table {
        assert_eq!(errors(&text), [expected], "{text}");
    }
}

#[test]
fn rules_about_tasks() {
    let named =
        |name: &str| format!("job \"j\" {{\ngroup \"g\" {{\ntask \"{name}\" {{\ndriver = \"exec\"\n}}\n}}\n}}\n");
    let name_rule = |name: &str| {
        let rule = "it must not be empty, \"alloc\", \".\", \"..\" or contain slashes";
        format!("job.hcl:3: \"{name}\" cannot be a task's name; {rule}")
    };
    for name in ["", "alloc", "a/b", ".", ".."] {
        assert_eq!(errors(&named(name)), [name_rule(name)]);
    }
    let template = |inside: &str| format!("template {{\ndata = \"\"\ndestination = \"local/x\"\n{inside}\n}}");
    let table = [
        (
            "resources { memory = 9 }".to_owned(),
            "job.hcl:4: \"memory\" in resources of task \"t\" must be at least 10, not 9",
        ),
        ("resources { cpu = 0 }".to_owned(), "job.hcl:4: \"cpu\" in resources of task \"t\" must be at least 1, not 0"),
        (
            "resources {\nmemory = 100\nmemory_max = 50\n}".to_owned(),
            "job.hcl:6: \"memory_max\" in resources of task \"t\" must be at least memory (100 MiB), 0 for none or -1 for no limit",
        ),
        (
            "resources {\nmemory = 20\nsecrets = 21\n}".to_owned(),
            "job.hcl:6: \"secrets\" in resources of task \"t\" must be at most memory (20 MiB)",
        ),
        (
            "kill_signal = \"SIGFOO\"".to_owned(),
            "job.hcl:4: unknown signal \"SIGFOO\" in task \"t\"; use a name such as SIGTERM",
        ),
        ("kill_timeout = \"5\"\nuser = [1]".to_owned(), "job.hcl:5: \"user\" in task \"t\" must be a string, not list"),
        (
            "kill_timeout = \"soon\"".to_owned(),
            "job.hcl:4: \"kill_timeout\" in task \"t\": \"soon\" is not a duration such as 30s, 5m or 1h30m",
        ),
        ("kill_timeout = \"-5s\"".to_owned(), "job.hcl:4: \"kill_timeout\" in task \"t\": it must not be negative"),
        // Upstream #25292: null was a crash.
        (
            "kill_timeout = null".to_owned(),
            "job.hcl:4: \"kill_timeout\" in task \"t\" must be a duration such as \"30s\", not null",
        ),
        ("leader = \"yes\"".to_owned(), "job.hcl:4: \"leader\" in task \"t\" must be true or false, not \"yes\""),
        (
            "lifecycle {\nsidecar = true\n}".to_owned(),
            "job.hcl:4: lifecycle of task \"t\" has no hook; use prestart, poststart or poststop",
        ),
        (
            "lifecycle { hook = \"\" }".to_owned(),
            "job.hcl:4: lifecycle of task \"t\" has no hook; use prestart, poststart or poststop",
        ),
        (
            "lifecycle { hook = \"before\" }".to_owned(),
            "job.hcl:4: unknown lifecycle hook \"before\"; use prestart, poststart or poststop",
        ),
        (
            "logs { max_files = 0 }".to_owned(),
            "job.hcl:4: \"max_files\" in logs of task \"t\" must be at least 1, not 0",
        ),
        (
            "logs { max_file_size = 30 }".to_owned(),
            "job.hcl:4: the logs of task \"t\" may grow to 300 MiB, which must be less than the ephemeral disk of 300 MiB; keep fewer or smaller files, or raise ephemeral_disk size",
        ),
        (
            "logs {\nenabled = true\ndisabled = true\n}".to_owned(),
            "job.hcl:5: \"enabled\" contradicts \"disabled\"; keep disabled",
        ),
        (
            "scaling \"cpu\" {\n}\nscaling \"mem\" {\n}\nscaling \"CPU\" {\n}".to_owned(),
            "job.hcl:8: Duplicate scaling \"cpu\" block in task \"t\"; it stands in line 4 already",
        ),
        (
            template("perms = \"0999\""),
            "job.hcl:7: \"perms\" in template of task \"t\" must be octal such as \"0644\", not \"0999\"",
        ),
        (
            template("change_mode = \"signal\""),
            "job.hcl:7: change_mode \"signal\" in template of task \"t\" needs change_signal",
        ),
        (
            template("change_mode = \"reload\""),
            "job.hcl:7: unknown change_mode \"reload\"; use noop, restart, signal or script",
        ),
        (
            "template {\ndestination = \"local/x\"\n}".to_owned(),
            "job.hcl:4: template of task \"t\" has no data; add data = \"...\"",
        ),
        (
            "template {\ndata = \"\"\n}".to_owned(),
            "job.hcl:4: template of task \"t\" has no destination; add destination = \"local/...\"",
        ),
        (
            format!("{0}\n{0}", template("")),
            "job.hcl:9: two templates of task \"t\" have the destination \"local/x\", the other one stands in line 4; change one",
        ),
        (
            "artifact {\nsource = \"x\"\nmode = \"tar\"\n}".to_owned(),
            "job.hcl:6: unknown artifact mode \"tar\"; use any, file or dir",
        ),
        (
            "config {\na = 1\na {\n}\n}".to_owned(),
            "job.hcl:6: \"a\" is both an argument and a block of the config; keep one",
        ),
        (
            "config {\n}\nconfig {\n}".to_owned(),
            "job.hcl:6: Duplicate config block in task \"t\"; it stands in line 4 already",
        ),
    ];
    for (inside, expected) in table {
        let found = errors(&around_task(&inside));
        let relevant: Vec<_> = found.iter().filter(|e| !e.contains("at least one main task")).collect();
        assert!(relevant.iter().any(|e| *e == expected), "{inside}\n{found:#?}");
        assert!(relevant.len() <= 1 || inside.contains("kill_timeout = \"5\""), "{found:#?}");
    }
    assert_eq!(
        errors("job \"j\" {\ngroup \"g\" {\ntask \"t\" {\nuser = \"x\"\n}\n}\n}\n"),
        ["job.hcl:3: task \"t\" has no driver; add driver = \"exec\""]
    );
    assert_eq!(
        errors(&around_task("lifecycle { hook = \"prestart\" }")),
        ["job.hcl:2: group \"g\" must have at least one main task, one without a lifecycle block"]
    );
    assert_eq!(
        errors(&around_group(
            "task \"a\" {\ndriver = \"exec\"\nleader = true\n}\ntask \"b\" {\ndriver = \"exec\"\nleader = true\n}"
        )),
        ["job.hcl:7: task \"b\" cannot be the leader, because task \"a\" is; keep one leader"]
    );
}

#[test]
fn all_errors_are_collected_in_the_order_of_the_file() {
    let found = errors(&around_task("leader = 5\nresources { cpu = 0 }\nservice {\n}\nfoo = 1\nkill_signal = \"x\""));
    let lines: Vec<_> = found.iter().map(|e| e.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["4", "5", "8"]);
}

/// Upstream: `InvalidHCL`.
#[test]
fn syntax_errors_name_their_line() {
    for (text, line) in [
        ("job \"j\" {\n", 2),
        ("job \"j\" {\n  type = \n}\n", 2),
        ("job \"j\" {\n  a = 1\n  a = 2\n}\n", 3),
        ("\n\njob \"j\" {{\n}\n", 3),
        ("job \"j\" {\n  a = \"\\q\"\n}\n", 2),
        ("job \"j\" {\n x = <<EOT\nno end\n}\n", 3),
    ] {
        let found = errors(text);
        assert!(found[0].contains(": syntax error: "), "{text}: {found:?}");
        let at: u32 = found[0].split(':').nth(1).unwrap().parse().unwrap();
        assert!(at.abs_diff(line) <= 1, "{text}: {found:?}");
    }
}
