//! Group D: ways around what the machine's operator demands, beside the keys of a task's configuration.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use agentbin::plugin::Client;
use agentbin::wire::base::{self, base_plugin_client::BasePluginClient};
use agentbin::wire::cty::{self, Value};
use agentbin::wire::drivers as wire;
use agentbin::wire::drivers::driver_client::DriverClient;

use crate::framework::{Attack, Lab, Mutant, Verdict, hold};

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d90", run: d90, inside: None, mutants: &[Mutant::new("d90")], control: None },
    Attack {
        id: "d91",
        run: d91,
        inside: None,
        mutants: &[Mutant::new("d91-artifact"), Mutant::new("d91-function")],
        control: None,
    },
    Attack { id: "d92", run: d92, inside: None, mutants: &[Mutant::new("d92")], control: None },
    Attack { id: "d101", run: d101, inside: None, mutants: &[Mutant::new("d101")], control: None },
    Attack { id: "d97", run: d97, inside: None, mutants: &[Mutant::new("d97")], control: None },
    Attack { id: "d98", run: d98, inside: None, mutants: &[Mutant::new("d98")], control: None },
];

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn list(items: &[&str]) -> Value {
    Value::List(items.iter().map(|item| text(item)).collect())
}

fn bytes(pairs: &[(&str, Value)]) -> Vec<u8> {
    cty::encode(&Value::Map(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()))
}

/// Tells a driver's plugin its configuration.
async fn configure(client: &Client, plugin: &[(&str, Value)]) -> Result<(), String> {
    let request = base::SetConfigRequest {
        msgpack_config: bytes(plugin),
        nomad_config: Some(base::NomadConfig { driver: Some(base::NomadDriverConfig::default()) }),
        plugin_api_version: "v0.1.0".into(),
    };
    let told = BasePluginClient::new(client.channel()).set_config(request).await;
    told.map(drop).map_err(|e| e.message().to_owned())
}

/// A task as an agent sends it.
fn task(lab: &Lab, config: &[(&str, Value)]) -> wire::TaskConfig {
    let id = uuid::Uuid::new_v4().to_string();
    wire::TaskConfig {
        id: format!("{id}/t/{:08x}", 1),
        name: "t".to_owned(),
        user: "nobody".to_owned(),
        alloc_id: id,
        alloc_dir: lab.path("alloc").display().to_string(),
        msgpack_driver_config: bytes(config),
        resources: Some(wire::Resources::default()),
        ..Default::default()
    }
}

/// What an agent shows of a start.
async fn start(client: &Client, task: &wire::TaskConfig) -> Result<(), String> {
    let request = wire::StartTaskRequest { task: Some(task.clone()) };
    match DriverClient::new(client.channel()).start_task(request).await.map(tonic::Response::into_inner) {
        Ok(answer) if answer.driver_error_msg.is_empty() => Ok(()),
        Ok(answer) => Err(answer.driver_error_msg),
        Err(status) => Err(status.message().to_owned()),
    }
}

async fn destroy(client: &Client, task: &wire::TaskConfig) {
    let request = wire::DestroyTaskRequest { task_id: task.id.clone(), force: true };
    DriverClient::new(client.channel()).destroy_task(request).await.unwrap();
}

/// A driver with this configuration, one start of a task that runs to its end.
fn run(lab: &Lab, driver: &str, plugin: &[(&str, Value)], task: &wire::TaskConfig) -> Result<(), String> {
    let client = lab.plugin(driver);
    let started = lab.block_on("run a task", async {
        configure(&client, plugin).await?;
        start(&client, task).await?;
        let request = wire::WaitTaskRequest { task_id: task.id.clone() };
        DriverClient::new(client.channel()).wait_task(request).await.unwrap();
        destroy(&client, task).await;
        Ok(())
    });
    lab.block_on("end a driver", client.kill());
    // What the driver made for the task is the agent's to remove.
    lab.reconcile();
    started
}

/// A job asks for a device of the host, which the client's device plugin gives to whoever asks.
fn d90(lab: &mut Lab) -> Verdict {
    let device = |host: &str| wire::Device {
        task_path: "/dev/given".to_owned(),
        host_path: host.to_owned(),
        cgroup_permissions: "rwm".to_owned(),
    };
    let found = || lab.shared("data/found");
    // What the task finds is what its directory, which everybody may write to, then has.
    let script = "test -c /dev/given && touch /alloc/data/found; true";
    let config = || [("command", text("/bin/sh")), ("args", list(&["-c", script]))];
    let minimum = |level: &str| ("isolation_minimum", text(level));
    let allow = |globs: &[&str]| ("allow_devices", list(globs));
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    for (plugin, host, refused) in [
        (
            vec![minimum("strict")],
            "/dev/full",
            Some("is looser than isolation_minimum = \"strict\" of plugin \"exec\""),
        ),
        (vec![minimum("strict"), allow(&["/dev/nvidia*"])], "/dev/full", Some("is not listed in allow_devices")),
        (vec![minimum("default"), allow(&[])], "/dev/full", Some("is not listed in allow_devices of plugin \"exec\"")),
        (vec![allow(&["/dev/z*"])], "/dev/zero/../full", Some("is not listed in allow_devices")),
        (vec![minimum("strict"), allow(&["/dev/f*"])], "/dev/full", None),
        (vec![minimum("default")], "/dev/full", None),
        (vec![], "/dev/full", None),
    ] {
        let mut task = task(lab, &config());
        task.devices = vec![device(host)];
        let ran = run(lab, "exec", &plugin, &task);
        let has = found().exists();
        if has {
            std::fs::remove_file(found()).unwrap();
        }
        match refused {
            Some(why) => {
                hold!(!has && ran.is_err(), "{plugin:?}: the task has {host}");
                hold!(ran.as_ref().is_err_and(|said| said.contains(why) && said.contains(host)), "{plugin:?}: {ran:?}");
            }
            None => assert_eq!((ran, has), (Ok(()), true), "{plugin:?}"),
        }
    }
    // The same of a container; the engine is not asked.
    let plugin = |globs| vec![minimum("default"), allow(globs), ("endpoint", text("unix:///nonexistent/docker.sock"))];
    let mut container = task(lab, &[("image", text("x"))]);
    container.devices = vec![device("/dev/full")];
    let refused = run(lab, "docker", &plugin(&[]), &container);
    hold!(refused.as_ref().is_err_and(|said| said.contains("is not listed in allow_devices")), "docker: {refused:?}");
    let refused = run(lab, "docker", &plugin(&["/dev/full"]), &container).unwrap_err();
    assert!(!refused.contains("allow_devices"), "{refused}");
    Ok(())
}

/// Taken off when it is dropped.
struct Instead {
    place: PathBuf,
    /// Whether the file below was made for it.
    is_ours: bool,
}

impl Drop for Instead {
    fn drop(&mut self) {
        nix::mount::umount2(&self.place, nix::mount::MntFlags::MNT_DETACH).unwrap();
        if self.is_ours {
            std::fs::remove_file(&self.place).unwrap();
        }
    }
}

/// A program of the artifact fetcher is in the hands of the server that it asks. Here git is one that looks around.
fn d101(lab: &mut Lab) -> Verdict {
    let (shown, open, git) = (lab.path("shown"), lab.path("open"), lab.path("git"));
    for dir in [&shown, &open] {
        std::fs::create_dir(dir).unwrap();
        crate::framework::set_mode(dir, 0o777);
    }
    std::fs::write(shown.join("file"), "words of the host\n").unwrap();
    crate::framework::set_mode(&shown.join("file"), 0o666);
    let (seen, made) = (shown.display(), open.display());
    let script = format!(
        "#!/bin/sh\nmkdir repository\n{{ echo it looked; cat {seen}/file; ls {seen}; echo x > {made}/new; echo x >> {seen}/file; \
         }} > repository/f 2>&1\nexit 0\n"
    );
    std::fs::write(&git, script).unwrap();
    crate::framework::set_mode(&git, 0o755);
    let place = PathBuf::from("/usr/bin/git");
    // A machine without git, as that of scripts/guest, has none afterwards either.
    std::fs::create_dir_all("/usr/bin").unwrap();
    let is_ours = std::fs::File::create_new(&place).is_ok();
    let none: Option<&str> = None;
    nix::mount::mount(Some(&git), &place, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
    let instead = Instead { place, is_ours };
    let artifact = "artifact {\n source = \"git::https://127.0.0.1:1/r.git\"\n }\n config {";
    let job = lab.job("raw_exec", "/bin/cat", "[\"local/f\"]", "").replace("config {", artifact);
    let mut run = lab.agentbin_run(&job, &[]);
    run.wait();
    let said = run.interrupt();
    drop(instead);
    assert!(said.contains("it looked"), "{said}");
    if agentbin::sys::features::landlock().is_err() {
        return Ok(());
    }
    hold!(!said.contains("words of the host"), "it has read a file of the host: {said}");
    hold!(!open.join("new").exists(), "it has made a file on the host");
    let words = std::fs::read_to_string(shown.join("file")).unwrap();
    hold!(words == "words of the host\n", "it has changed a file of the host");
    Ok(())
}

/// Files of the host come into a task as artifacts, or in what the job's functions read, as whoever runs the job.
fn d91(lab: &mut Lab) -> Verdict {
    let (secret, shadow) = (lab.secret("secret"), lab.secret("shadow"));
    let dir = lab.path("");
    std::fs::write(dir.join("beside"), "beside the job\n").unwrap();
    std::fs::create_dir_all(dir.join("tree/deep")).unwrap();
    std::fs::write(dir.join("tree/deep/file"), "in a tree\n").unwrap();
    std::os::unix::fs::symlink(lab.canary("secret"), dir.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc", dir.join("way")).unwrap();
    std::os::unix::fs::symlink(lab.canary("secret"), dir.join("tree/deep/link")).unwrap();
    let job = |source: &str, value: &str| {
        let artifact = match source {
            "" => String::new(),
            source => format!(
                "   artifact {{\n    source = \"{source}\"\n    destination = \"local/\"\n    chown = true\n   }}\n"
            ),
        };
        format!(
            "job \"attack\" {{\n type = \"batch\"\n meta {{\n  above = \"{}\"\n }}\n group \"g\" {{\n  restart {{\n   attempts = 0\n   mode = \"fail\"\n  }}\n  \
             task \"t\" {{\n   driver = \"exec\"\n   user = \"nobody\"\n   kill_timeout = \"10ms\"\n{artifact}   env {{\n    VALUE = {value}\n   }}\n   \
             config {{\n    command = \"/bin/sh\"\n    args = [\"-c\", \"echo it ran; env; grep -r . /local\"]\n   }}\n  }}\n }}\n}}\n",
            lab.canary("").display()
        )
    };
    // The canary lies beside the directory of the job, which is another one.
    let jobs = lab.path("jobs");
    std::fs::create_dir(&jobs).unwrap();
    for name in ["beside", "tree", "link", "way"] {
        std::fs::rename(dir.join(name), jobs.join(name)).unwrap();
    }
    let ran = |flags: &[&str], text: &str| {
        std::fs::write(jobs.join("job.nomad.hcl"), text).unwrap();
        let mut run = lab.agentbin_run_file(&lab.path("data"), flags, &jobs.join("job.nomad.hcl"), &[]);
        run.wait();
        run.interrupt()
    };
    let above = lab.canary("");
    let above = above.display();
    let minimum = ["--isolation-minimum", "strict"];
    for (source, value) in [
        (format!("{above}/secret"), "\"\"".to_owned()),
        (format!("file://{above}/secret"), "\"\"".to_owned()),
        ("../canary/secret".to_owned(), "\"\"".to_owned()),
        ("${NOMAD_META_above}/secret".to_owned(), "\"\"".to_owned()),
        ("../canary".to_owned(), "\"\"".to_owned()),
        ("link".to_owned(), "\"\"".to_owned()),
        ("way/hostname".to_owned(), "\"\"".to_owned()),
        (String::new(), format!("file(\"{above}/secret\")")),
        (String::new(), "file(\"../canary/shadow\")".to_owned()),
        (String::new(), "file(\"link\")".to_owned()),
        (String::new(), "file(\"./tree/../../canary/secret\")".to_owned()),
        (String::new(), "base64decode(filebase64(\"../canary/secret\"))".to_owned()),
        (String::new(), "try(file(\"../canary/secret\"), \"none\")".to_owned()),
        (String::new(), format!("join(\",\", fileset(\"{above}\", \"*\"))")),
        (String::new(), "join(\",\", fileset(\"way\", \"host*\"))".to_owned()),
        (String::new(), format!("\"secret is ${{fileexists(\"{above}/secret\")}}\"")),
        (String::new(), "\"secret is ${fileexists(\"link\")}\"".to_owned()),
    ] {
        let said = ran(&minimum, &job(&source, &value));
        let got = [secret.as_str(), &shadow, "secret,shadow", "/local/hostname", "VALUE=host", "secret is true"];
        let got = got.iter().any(|what| said.contains(what));
        hold!(!got, "source {source:?}, value {value}: {said}");
        let tried = value.starts_with("try(");
        let named = said.contains("--isolation-minimum") && said.contains("job.nomad.hcl:");
        hold!(tried || (!said.contains("it ran") && named), "source {source:?}, value {value} is not named: {said}");
        // That without the minimum it is read shows that there is something to be kept.
        let said = ran(&[], &job(&source, &value));
        assert!(said.contains("it ran"), "source {source:?}, value {value}: {said}");
    }
    // What lies beside the job is the job's.
    for (source, value, expected) in [
        ("beside", "\"\"", "beside the job"),
        ("./tree", "\"\"", "in a tree"),
        ("", "file(\"tree/deep/file\")", "VALUE=in a tree"),
        ("", "join(\",\", fileset(\".\", \"tree/**\"))", "VALUE=tree/deep/file"),
        ("", "\"${fileexists(\"tree/deep/file\")} ${fileexists(\"tree/none\")}\"", "VALUE=true false"),
    ] {
        let said = ran(&minimum, &job(source, value));
        assert!(said.contains("it ran") && said.contains(expected), "source {source:?}, value {value}: {said}");
        hold!(!said.contains(&secret), "through a link in a tree: {said}");
    }
    std::fs::remove_dir_all(&jobs).unwrap();
    Ok(())
}

/// A job brings a passwd file of its own, in a volume over `/etc`: in it the task's user has a number that the operator denies.
fn d92(lab: &mut Lab) -> Verdict {
    let etc = lab.path("etc");
    std::fs::create_dir(&etc).unwrap();
    let who = lab.shared("data/who");
    let volume = vec![wire::Mount {
        task_path: "/etc".to_owned(),
        host_path: etc.display().to_string(),
        readonly: true,
        propagation_mode: "private".to_owned(),
        ..Default::default()
    }];
    let nomad = ("isolation", text("nomad"));
    for (plugin, passwd, group, denied) in [
        (vec![("denied_host_uids", text("33"))], "abthree:x:33:7001::/:/bin/sh\n", "", "33:"),
        (vec![("denied_host_gids", text("42"))], "abthree:x:7001:42::/:/bin/sh\n", "", ":42"),
        (vec![("denied_host_gids", text("42"))], "abthree:x:7001:7001::/:/bin/sh\n", "shadow:x:42:abthree\n", "42"),
        (vec![("denied_host_uids", text("0")), nomad.clone()], "abthree:x:0:7001::/:/bin/sh\n", "", "0:"),
    ] {
        std::fs::write(etc.join("passwd"), passwd).unwrap();
        std::fs::write(etc.join("group"), group).unwrap();
        let script = "echo $(id -u):$(id -g) $(id -G) > /alloc/data/who";
        let mut task = task(lab, &[("command", text("/bin/sh")), ("args", list(&["-c", script]))]);
        "abthree".clone_into(&mut task.user);
        task.mounts.clone_from(&volume);
        let ran = run(lab, "exec", &plugin, &task);
        let said = std::fs::read_to_string(&who).unwrap_or_default();
        let _ = std::fs::remove_file(&who);
        let is_denied = if denied.contains(':') { said.contains(denied) } else { said.contains(&format!(" {denied}")) };
        hold!(!is_denied, "{plugin:?}: the task runs as {said}");
        assert_eq!(ran, Ok(()), "{plugin:?}");
        assert!(said.starts_with("7001:7001 "), "as on the host: {said:?}");
    }
    // Where nothing is denied, the file of the task's root counts, as before.
    std::fs::write(etc.join("passwd"), "abthree:x:4711:4711::/:/bin/sh\n").unwrap();
    let mut task = task(lab, &[("command", text("/bin/sh")), ("args", list(&["-c", "id -u > /alloc/data/who"]))]);
    "abthree".clone_into(&mut task.user);
    task.mounts.clone_from(&volume);
    assert_eq!(run(lab, "exec", &[], &task), Ok(()));
    assert_eq!(std::fs::read_to_string(&who).unwrap().trim(), "4711");
    std::fs::remove_file(&who).unwrap();
    std::fs::remove_dir_all(&etc).unwrap();
    Ok(())
}

/// A driver whose configuration was refused: what it has then is that of nobody.
fn d97(lab: &mut Lab) -> Verdict {
    let minimum = |level: &str| vec![("isolation_minimum", text(level))];
    let enabled = |mut plugin: Vec<(&'static str, Value)>| {
        plugin.push(("enabled", Value::Bool(true)));
        plugin
    };
    let mistyped = || ("isolation_minimum", text("Strict"));
    for (driver, before, wrong, config) in [
        ("raw_exec", None, vec![mistyped()], vec![]),
        ("exec", None, vec![mistyped()], vec![("isolation", text("nomad"))]),
        ("exec", Some(minimum("default")), vec![mistyped()], vec![("isolation", text("default"))]),
        ("raw_exec", Some(enabled(vec![])), vec![("denied_host_uids", text("0-x"))], vec![]),
    ] {
        let client = lab.plugin(driver);
        let mut config = config;
        config.push(("command", text("/bin/true")));
        let task = task(lab, &config);
        let (refused, started) = lab.block_on("start a task", async {
            if let Some(before) = &before {
                configure(&client, before).await.unwrap();
            }
            let refused = configure(&client, &wrong).await;
            let started = start(&client, &task).await;
            if started.is_ok() {
                destroy(&client, &task).await;
            }
            (refused, started)
        });
        lab.block_on("end a driver", client.kill());
        lab.reconcile();
        let problem = refused.expect_err("a wrong configuration");
        hold!(started.is_err(), "{driver} without its configuration ({problem}) started a task");
        hold!(started.as_ref().is_err_and(|said| said.contains(wrong[0].0)), "{driver}: {started:?}");
    }
    // The next one counts.
    let client = lab.plugin("exec");
    let task = task(lab, &[("command", text("/bin/true"))]);
    let started = lab.block_on("start a task", async {
        configure(&client, &[mistyped()]).await.unwrap_err();
        configure(&client, &minimum("strict")).await.unwrap();
        let started = start(&client, &task).await;
        destroy(&client, &task).await;
        started
    });
    lab.block_on("end a driver", client.kill());
    lab.reconcile();
    assert_eq!(started, Ok(()));
    Ok(())
}

/// One task is started twice at the same time: of the two, nobody would know one.
fn d98(lab: &mut Lab) -> Verdict {
    for round in 0..lab.rounds(20) {
        let client = lab.plugin("exec");
        let task = task(lab, &[("command", text("/bin/sleep")), ("args", list(&["1000"]))]);
        let (one, other) = lab.block_on("start a task", async {
            configure(&client, &[]).await.unwrap();
            let (one, other) = tokio::join!(start(&client, &task), start(&client, &task));
            destroy(&client, &task).await;
            (one, other)
        });
        lab.block_on("end a driver", client.kill());
        lab.reconcile();
        hold!(one.is_err() || other.is_err(), "round {round}: started twice");
        assert!(one.is_ok() || other.is_ok(), "{one:?} {other:?}");
        let refused = one.and(other).unwrap_err();
        hold!(refused.contains("already started"), "{refused}");
        lab.judge()?;
        if lab.mutant.is_none() && round > 2 {
            break;
        }
    }
    Ok(())
}
