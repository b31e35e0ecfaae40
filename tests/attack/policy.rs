//! Group D: a job that asks for less isolation than the machine's operator demands.

use agentbin::wire::base::{self, base_plugin_client::BasePluginClient};
use agentbin::wire::cty::{self, Value};
use agentbin::wire::drivers as wire;
use agentbin::wire::drivers::driver_client::DriverClient;

use crate::framework::{Attack, Inside, Lab, Mutant, Verdict, hold};

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d30", run: d30, inside: Some(d30_inside), mutants: &[Mutant::new("d30")], control: None },
    Attack { id: "d31", run: d31, inside: None, mutants: &[Mutant::new("d31")], control: None },
    Attack { id: "d32", run: d32, inside: None, mutants: &[Mutant::new("d32")], control: None },
    Attack { id: "d33", run: d33, inside: None, mutants: &[Mutant::new("d33")], control: None },
    Attack { id: "d34", run: d34, inside: None, mutants: &[Mutant::new("d34")], control: None },
    Attack { id: "d35", run: d35, inside: None, mutants: &[Mutant::new("d35")], control: None },
];

/// A strict task asks for the host's processes and shared memory, by itself or by the plugin's default.
fn d30(lab: &mut Lab) -> Verdict {
    for user in ["nobody", "root"] {
        for key in ["pid_mode", "ipc_mode"] {
            let own = std::fs::read_link(format!("/proc/self/ns/{}", &key[..3])).unwrap();
            let own = own.display().to_string();
            lab.task(&[&own]).user(user).config("isolation", "strict".into()).config(key, "host".into()).must_hold()?;
        }
    }
    // By the plugin's default.
    let plugin = [("default_pid_mode", text("host")), ("isolation", text("strict"))];
    let refused = start(lab, "exec", &plugin, &[("command", text("/bin/true"))]);
    hold!(refused.as_ref().is_err_and(|said| said.contains("default_pid_mode")), "strict by default: {refused:?}");
    // A driver that refuses everything would pass.
    lab.task(&["none"]).user("nobody").config("isolation", "strict".into()).run().unwrap().held()
}

fn d30_inside(args: &[String], inside: &Inside) {
    for name in ["pid", "ipc"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
        if own == args[0] {
            inside.breach(&format!("in the host's {name} namespace"));
        }
    }
    let first = std::fs::read("/proc/1/cmdline").unwrap_or_default();
    if !String::from_utf8_lossy(&first).contains("inside") {
        inside.breach("sees the host's first process");
    }
}

/// A job of one task with these lines in its `config`.
fn job(driver: &str, config: &str) -> String {
    format!(
        "job \"attack\" {{\n type = \"batch\"\n group \"g\" {{\n  restart {{\n   attempts = 0\n   mode = \"fail\"\n  }}\n  \
         task \"t\" {{\n   driver = \"{driver}\"\n   kill_timeout = \"10ms\"\n   config {{\n    command = \"/bin/echo\"\n    \
         args = [\"it\", \"ran\"]\n    {config}\n   }}\n  }}\n }}\n}}\n"
    )
}

/// What a run with these flags says, from its beginning to its end.
fn run(lab: &Lab, flags: &[&str], job: &str) -> String {
    let mut run = lab.agentbin_run_with(flags, job, &[]);
    run.wait();
    run.interrupt()
}

/// Of a driver's plugin: what a start is refused with.
fn start(lab: &Lab, driver: &str, plugin: &[(&str, Value)], task: &[(&str, Value)]) -> Result<(), String> {
    let bytes = |pairs: &[(&str, Value)]| {
        cty::encode(&Value::Map(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()))
    };
    let client = lab.plugin(driver);
    let id = uuid::Uuid::new_v4().to_string();
    let task = wire::TaskConfig {
        id: format!("{id}/t/{:08x}", 1),
        name: "t".to_owned(),
        user: "nobody".to_owned(),
        alloc_id: id,
        alloc_dir: lab.path("alloc").display().to_string(),
        msgpack_driver_config: bytes(task),
        resources: Some(wire::Resources::default()),
        ..Default::default()
    };
    let started = lab.block_on("start a task", async {
        let request = base::SetConfigRequest {
            msgpack_config: bytes(plugin),
            nomad_config: Some(base::NomadConfig { driver: Some(base::NomadDriverConfig::default()) }),
            plugin_api_version: "v0.1.0".into(),
        };
        BasePluginClient::new(client.channel()).set_config(request).await.map_err(|e| e.message().to_owned())?;
        let mut driver = DriverClient::new(client.channel());
        let started = driver.start_task(wire::StartTaskRequest { task: Some(task.clone()) }).await;
        if started.is_ok() {
            let request = wire::DestroyTaskRequest { task_id: task.id.clone(), force: true };
            driver.destroy_task(request).await.unwrap();
        }
        // An agent shows what stands in the answer, or the error of the call.
        match started.map(tonic::Response::into_inner) {
            Ok(answer) if answer.driver_error_msg.is_empty() => Ok(()),
            Ok(answer) => Err(answer.driver_error_msg),
            Err(status) => Err(status.message().to_owned()),
        }
    });
    lab.block_on("end a driver", client.kill());
    // What the driver made for the task is the agent's to remove.
    lab.reconcile();
    started
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn minimum(level: &str) -> (&'static str, Value) {
    ("isolation_minimum", text(level))
}

/// Each key by which a job of `exec` can loosen something, below each minimum, in a run and under an agent.
fn d31(lab: &mut Lab) -> Verdict {
    for (level, key, value) in [
        ("default", "isolation", "\"nomad\""),
        ("strict", "isolation", "\"default\""),
        ("strict", "user_namespace", "false"),
        ("default", "pid_mode", "\"host\""),
        ("default", "ipc_mode", "\"host\""),
        ("default", "seccomp", "\"unconfined\""),
        ("default", "no_new_privs", "false"),
        ("default", "cap_add", "[\"mknod\"]"),
        ("default", "pids_limit", "0"),
    ] {
        let said = run(lab, &["--isolation-minimum", level], &job("exec", &format!("{key} = {value}")));
        hold!(!said.contains("it ran"), "{key} = {value} at {level}: {said}");
        let named = said.contains(&format!("{key} = {value} is looser than --isolation-minimum {level}"));
        hold!(named && said.contains("data.nomad.hcl:"), "{key} = {value} at {level} is not named: {said}");
    }
    for (level, key, value) in [
        ("default", "isolation", text("nomad")),
        ("strict", "isolation", text("default")),
        ("strict", "no_new_privs", Value::Bool(false)),
        ("default", "ulimit", Value::Map([("core".to_owned(), text("unlimited"))].into())),
    ] {
        let refused = start(lab, "exec", &[minimum(level)], &[("command", text("/bin/true")), (key, value)]);
        let demand = format!("is looser than isolation_minimum = {level:?} of plugin \"exec\"");
        hold!(refused.as_ref().is_err_and(|said| said.contains(&demand)), "{key} at {level}: {refused:?}");
    }
    // What says nothing is held as the minimum says, and one that refuses everything would pass.
    let quiet = job("exec", "")
        .replace("/bin/echo", "/bin/cat")
        .replace("\"it\", \"ran\"", "\"/proc/self/uid_map\", \"/proc/net/dev\"")
        .replace("task \"t\"", "network {\n   port \"p\" {}\n  }\n  task \"t\"");
    let said = run(lab, &["--isolation-minimum", "strict"], &quiet);
    let loopback_only = said.contains("lo:") && !said.contains("eth") && !said.contains("4294967295");
    assert!(loopback_only, "a strict task has a user namespace, and a network of its own: {said}");
    assert!(said.contains("Nobody reaches the ports of this task"), "{said}");
    Ok(())
}

/// Drivers that hold nothing run where they are named, and only there.
fn d32(lab: &mut Lab) -> Verdict {
    for level in ["default", "strict"] {
        let said = run(lab, &["--isolation-minimum", level], &job("raw_exec", ""));
        hold!(!said.contains("it ran"), "raw_exec at {level}: {said}");
        hold!(said.contains("--allow-driver raw_exec allows it"), "raw_exec at {level}: {said}");
        let enabled = || ("enabled", Value::Bool(true));
        let command = || vec![("command", text("/bin/true"))];
        let refused = start(lab, "raw_exec", &[enabled(), minimum(level)], &command());
        hold!(refused.as_ref().is_err_and(|said| said.contains("allow_drivers = [\"raw_exec\"]")), "{refused:?}");
        // What it puts elsewhere is not held there either, named or not.
        let named = || ("allow_drivers", Value::List(vec![text("raw_exec")]));
        let mut elsewhere = command();
        elsewhere.push(("cgroup_v2_override", text("/elsewhere")));
        let refused = start(lab, "raw_exec", &[enabled(), named(), minimum(level)], &elsewhere);
        hold!(refused.as_ref().is_err_and(|said| said.contains("cgroup_v2_override = ")), "{refused:?}");
    }
    let flags = ["--isolation-minimum", "strict", "--allow-driver", "raw_exec"];
    let said = run(lab, &flags, &job("raw_exec", ""));
    assert!(said.contains("it ran"), "{said}");
    Ok(())
}

/// Containers with what an agent's other keys allow; the engine is not asked.
fn d33(lab: &mut Lab) -> Verdict {
    let engine = || {
        vec![
            ("endpoint", text("unix:///nonexistent/docker.sock")),
            ("allow_privileged", Value::Bool(true)),
            ("allow_caps", Value::List(vec![text("all")])),
            ("volumes", Value::List(vec![Value::Map([("enabled".to_owned(), Value::Bool(true))].into())])),
        ]
    };
    let list = |item: &str| Value::List(vec![text(item)]);
    for (key, value) in [
        ("privileged", Value::Bool(true)),
        ("network_mode", text("host")),
        ("pid_mode", text("host")),
        ("userns_mode", text("host")),
        ("cap_add", list("sys_admin")),
        ("security_opt", list("seccomp=unconfined")),
        ("volumes", list("/etc:/host")),
        ("volume_driver", text("local")),
    ] {
        let mut plugin = engine();
        plugin.push(minimum("default"));
        let refused = start(lab, "docker", &plugin, &[("image", text("x")), (key, value)]);
        let demand = "is looser than isolation_minimum = \"default\" of plugin \"docker\"";
        let named = |said: &String| said.contains(demand) && said.contains(&format!("{key} = "));
        hold!(refused.as_ref().is_err_and(named), "{key}: {refused:?}");
    }
    // An engine cannot do what strict promises.
    let mut plugin = engine();
    plugin.push(minimum("strict"));
    let refused = start(lab, "docker", &plugin, &[("image", text("x"))]);
    hold!(refused.as_ref().is_err_and(|said| said.contains("allow_drivers = [\"docker\"]")), "{refused:?}");
    let said = run(lab, &["--isolation-minimum", "default"], &job("docker", "image = \"x\"\n    privileged = true"));
    hold!(said.contains("privileged = true is looser than --isolation-minimum default"), "{said}");
    // A harmless one gets as far as the engine.
    let mut plugin = engine();
    plugin.push(minimum("default"));
    let refused = start(lab, "docker", &plugin, &[("image", text("x"))]).unwrap_err();
    assert!(refused.contains("docker"), "{refused}");
    assert!(!refused.contains("looser"), "{refused}");
    Ok(())
}

/// A job names a file of the host as the sink of its output, which whoever runs it writes as root.
fn d34(lab: &mut Lab) -> Verdict {
    let file = lab.path("tmp/written-by-the-job");
    let sink = format!("log_sinks = [\"file:{}\"]", file.display());
    let said = run(lab, &["--isolation-minimum", "default"], &job("exec", &sink));
    let written = file.exists();
    if written {
        std::fs::remove_file(&file).unwrap();
    }
    hold!(!written && !said.contains("it ran"), "a file of the host was written: {said}");
    hold!(said.contains("log_sinks = ") && said.contains("is looser than --isolation-minimum"), "{said}");
    Ok(())
}

/// The operator's lists of modes hold without a minimum, too.
fn d35(lab: &mut Lab) -> Verdict {
    for key in ["pid_mode", "ipc_mode"] {
        let allow = if key == "pid_mode" { "allow_pid_modes" } else { "allow_ipc_modes" };
        let list = |modes: &[&str]| (allow, Value::List(modes.iter().map(|mode| text(mode)).collect()));
        let asked = || vec![("command", text("/bin/true")), (key, text("host"))];
        for (plugin, refused_as) in [
            (vec![list(&["private"])], format!("is not listed in {allow} of plugin \"exec\"")),
            (vec![list(&[])], format!("is not listed in {allow} of plugin \"exec\"")),
            (vec![list(&["private"]), minimum("default")], "is looser than isolation_minimum".to_owned()),
            (vec![list(&["private", "host"]), minimum("strict")], "is looser than isolation_minimum".to_owned()),
        ] {
            let refused = start(lab, "exec", &plugin, &asked());
            hold!(refused.as_ref().is_err_and(|said| said.contains(&refused_as)), "{plugin:?}: {refused:?}");
        }
        for plugin in [vec![], vec![list(&["host"])], vec![list(&["host"]), minimum("default")]] {
            assert_eq!(start(lab, "exec", &plugin, &asked()), Ok(()), "{plugin:?}");
        }
    }
    Ok(())
}
