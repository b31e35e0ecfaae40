//! Templates that ask for values (J4): `run --kv`, what is waited for, and what a change does to a task that runs.

#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use world::{Running, World, need_root, signal, wait_for_text, wait_for_times};

/// A job of one task with these templates, which runs a shell script.
fn job(templates: &str, script: &str) -> String {
    format!(
        "job \"values\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n task \"t\" {{\n \
         driver = \"raw_exec\"\n {templates}\n config {{\n command = \"/bin/sh\"\n args = [\"-c\", <<EOT\n{script}\nEOT\n ]\n }}\n \
         }}\n }}\n}}\n"
    )
}

fn template(data: &str, destination: &str, more: &str) -> String {
    format!(
        "template {{\n data = <<EOT\n{data}\nEOT\n destination = \"{destination}\"\n splay = \"0s\"\n {more}\n }}\n"
    )
}

/// Another file takes the name, as an editor does it.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

fn start(world: &World, job: &str, values: &Path) -> Running {
    let file = world.file("job.nomad.hcl", job);
    world.start(&["--kv", values.to_str().unwrap(), file.to_str().unwrap()])
}

fn end(mut running: Running, world: &World) -> world::Out {
    signal(&running.child, "SIGTERM");
    let out = running.finish();
    world.assert_clean();
    out
}

/// A task that lives until it is ended, and says what its file holds at each signal.
const FOLLOWS: &str =
    "trap 'echo told:$(cat local/x)' HUP; echo first:$(cat local/x):$PORT; while :; do sleep 0.05; done";

#[test]
fn j4_a_missing_value_is_waited_for() {
    need_root!();
    let world = World::new();
    let values = world.file("values.json", r#"{"app/name": "web"}"#);
    let text = job(
        &format!(
            "{}{}",
            template("{{ key \"app/name\" }}", "local/x", ""),
            template(
                "PORT={{ key \"app/port\" }}\nPASSWORD={{ with secret \"kv/data/db\" }}{{ .Data.data.password }}{{ end }}",
                "secrets/env",
                "env = true"
            )
        ),
        "echo $(cat local/x):$PORT:$PASSWORD",
    );
    let mut running = start(&world, &text, &values);
    wait_for_text(&running.stderr, "Missing: kv.block(app/port), vault.read(kv/data/db)");
    // One of two, and then in place rather than by a new name.
    replace(&values, r#"{"app/name": "web", "app/port": "80"}"#);
    wait_for_text(&running.stderr, "Missing: vault.read(kv/data/db)");
    std::fs::write(
        &values,
        "\"app/name\" = \"web\"\n\"app/port\" = 81\n\"kv/data/db\" = { data = { password = \"p<w>\" } }\n",
    )
    .unwrap();
    let out = running.finish();
    assert_eq!((out.status, out.stdout.trim()), (0, "web:81:p<w>"), "{out:?}");
    world.assert_clean();
    // Without a file of values the message has the fix, and a stop is heard.
    let running = world.start_text(&text);
    wait_for_text(&running.stderr, "give a file with these values by --kv");
    let out = end(running, &world);
    assert!(!out.stdout.contains("web"), "{out:?}");
}

#[test]
fn j4_a_change_does_what_its_mode_says() {
    need_root!();
    let one = |mode: &str| template("{{ key \"v\" }}", "local/x", mode);
    for (mode, shown, wanted) in [
        ("change_mode = \"noop\"", "", ""),
        ("change_mode = \"signal\"\n change_signal = \"SIGHUP\"", "told:two", "Template re-rendered"),
        ("change_mode = \"restart\"", "first:two:", "Template with change_mode restart re-rendered"),
        (
            "change_mode = \"script\"\n change_script {\n command = \"/bin/sh\"\n args = [\"-c\", \"cat local/x > alloc_said; kill -HUP $(cat local/pid)\"]\n }",
            "told:two",
            "Template successfully ran script /bin/sh with arguments: [-c",
        ),
    ] {
        let world = World::new();
        let values = world.file("values.json", r#"{"v": "one"}"#);
        let running = start(&world, &job(&one(mode), &format!("echo $$ > local/pid; {FOLLOWS}")), &values);
        wait_for_text(&running.stdout, "first:one:");
        // A file that cannot be read changes nothing and is told.
        replace(&values, "{");
        wait_for_text(&running.stderr, "Template failed: ");
        replace(&values, r#"{"v": "two"}"#);
        if shown.is_empty() {
            let file = glob(&world, "t/local/x");
            wait_for_file(&file, "two\n");
        } else {
            wait_for_text(&running.stdout, shown);
            wait_for_text(&running.stderr, wanted);
        }
        let out = end(running, &world);
        let firsts = out.stdout.matches("first:").count();
        assert_eq!(firsts, 1 + usize::from(mode.contains("restart")), "{mode}: {out:?}");
        assert_eq!(out.stdout.contains("told:"), shown.starts_with("told"), "{mode}: {out:?}");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a file that takes the name of another has no event here; it has a deadline"
)]
fn wait_for_file(file: &Path, wanted: &str) {
    let deadline = Instant::now() + world::seconds(60);
    while std::fs::read_to_string(file).unwrap() != wanted {
        assert!(Instant::now() < deadline, "the file did not change");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The file of the only allocation.
fn glob(world: &World, below: &str) -> std::path::PathBuf {
    let entries = std::fs::read_dir(world.data_dir().join("alloc")).unwrap();
    let dirs: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    assert_eq!(dirs.len(), 1, "{dirs:?}");
    dirs[0].join(below)
}

#[test]
fn j4_a_script_that_fails_ends_the_task_where_that_is_asked_for() {
    need_root!();
    let script = |fail: bool| {
        let more = format!(
            "change_mode = \"script\"\n change_script {{\n command = \"/bin/false\"\n fail_on_error = {fail}\n }}"
        );
        job(&template("{{ key \"v\" }}", "local/x", &more), FOLLOWS)
    };
    for fail in [false, true] {
        let world = World::new();
        let values = world.file("values.json", r#"{"v": "one"}"#);
        let mut running = start(&world, &script(fail), &values);
        wait_for_text(&running.stdout, "first:one:");
        replace(&values, r#"{"v": "two"}"#);
        wait_for_text(
            &running.stderr,
            "Template ran script /bin/false with arguments [] on change but it exited with code: 1",
        );
        if fail {
            let out = running.finish();
            assert_ne!(out.status, 0, "{out:?}");
            world.assert_clean();
        } else {
            // It goes on: the next change is seen as well.
            replace(&values, r#"{"v": "three"}"#);
            let file = glob(&world, "t/local/x");
            wait_for_file(&file, "three\n");
            end(running, &world);
        }
    }
}

/// A task that tells its starts.
const COUNTS: &str = "n=$(($(cat local/n 2>/dev/null || echo 0)+1)); echo $n > local/n; echo start $n; \
                      while :; do sleep 0.05; done";

#[test]
fn j4_a_script_runs_after_the_first_rendering_where_that_is_asked_for() {
    need_root!();
    let script = |command: &str| {
        let more = format!(
            "change_mode = \"script\"\n change_script {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{command}\"]\n \
             fail_on_error = true\n run_on_first_render = true\n }}"
        );
        job(&template("{{ key \"v\" }}", "local/x", &more), COUNTS)
    };
    let world = World::new();
    let values = world.file("values.json", r#"{"v": "one"}"#);
    let running = start(&world, &script("cat local/x >> local/ran"), &values);
    wait_for_text(&running.stderr, "Template successfully ran script /bin/sh with arguments: [-c");
    wait_for_text(&running.stdout, "start 1");
    // A restart renders nothing.
    world.done(&["restart", "t"]);
    wait_for_text(&running.stdout, "start 2");
    replace(&values, r#"{"v": "two"}"#);
    wait_for_file(&glob(&world, "t/local/ran"), "one\ntwo\n");
    // A stop in between would keep back what is said of a script that has ended.
    wait_for_times(&running.stderr, "Template successfully ran script", 2);
    let out = end(running, &world);
    assert_eq!(out.stderr.matches("Template successfully ran script").count(), 2, "{out:?}");

    let mut running = start(&world, &script("exit 3"), &values);
    let out = running.finish();
    assert!(out.status != 0 && out.stderr.contains("[-c exit 3] at the first rendering but it exited"), "{out:?}");
    world.assert_clean();
}

#[test]
fn j4_a_restart_renders_templates_again_where_that_is_asked_for() {
    need_root!();
    let world = World::new();
    let text = job(&template("{{ timestamp \"05.000000000\" }}", "local/x", "once = true"), COUNTS);
    let text = text.replace("mode = \"fail\"\n", "mode = \"fail\"\n render_templates = true\n");
    let running = world.start_text(&text);
    wait_for_text(&running.stdout, "start 1");
    let file = glob(&world, "t/local/x");
    let first = std::fs::read_to_string(&file).unwrap();
    world.done(&["restart", "t"]);
    wait_for_text(&running.stdout, "start 2");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), first);
    end(running, &world);
}

#[test]
fn j4_what_is_rendered_once_stays_and_files_get_their_owner() {
    need_root!();
    let world = World::new();
    let values = world.file("values.json", r#"{"v": "one"}"#);
    let templates = format!(
        "{}{}",
        template(
            "{{ key \"v\" }}",
            "local/once",
            "once = true\n change_mode = \"restart\"\n uid = 12\n gid = 34\n perms = \"640\""
        ),
        template("{{ key \"v\" }}", "local/x", "change_mode = \"signal\"\n change_signal = \"SIGHUP\"")
    );
    let running = start(&world, &job(&templates, FOLLOWS), &values);
    wait_for_text(&running.stdout, "first:one:");
    let once = glob(&world, "t/local/once");
    let stat = std::fs::metadata(&once).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.permissions().mode() & 0o7777), (12, 34, 0o640));
    replace(&values, r#"{"v": "two"}"#);
    wait_for_text(&running.stdout, "told:two");
    assert_eq!(std::fs::read_to_string(&once).unwrap(), "one\n");
    // Nothing half written stays beside it.
    let names = std::fs::read_dir(once.parent().unwrap()).unwrap().flatten().map(|e| e.file_name());
    let mut names: Vec<_> = names.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["once", "x"]);
    end(running, &world);
}

#[test]
fn j4_source_is_a_file_of_the_task_and_no_other() {
    need_root!();
    let world = World::new();
    let secret = world.file("secret", "hidden");
    let source = |name: &str| format!("template {{\n source = \"{name}\"\n destination = \"local/x\"\n }}\n");
    let first = template("{{ \"{{ env \\\"NOMAD_TASK_NAME\\\" }}\" }}", "local/made.tpl", "");
    let out = world.run_text(&job(&format!("{first}{}", source("local/made.tpl")), "cat local/x"), &[]);
    assert_eq!(out.status, 125, "a template is written after all are rendered: {out:?}");
    assert!(out.stderr.contains("template source \"local/made.tpl\""), "{out:?}");
    let file = world.file("got.tpl", "name={{ env \"NOMAD_TASK_NAME\" }}");
    let artifact =
        format!("artifact {{\n source = {file:?}\n destination = \"local/got.tpl\"\n mode = \"file\"\n }}\n");
    let out = world.run_text(&job(&format!("{artifact}{}", source("local/got.tpl")), "cat local/x"), &[]);
    assert_eq!((out.status, out.stdout.trim()), (0, "name=t"), "{out:?}");
    for path in [secret.to_str().unwrap(), "../../../secret", "local/../../x"] {
        let out = world.run_text(&job(&source(path), "cat local/x"), &[]);
        assert_ne!(out.status, 0, "{path}: {out:?}");
        assert!(!out.stdout.contains("hidden") && out.stderr.contains("template source"), "{path}: {out:?}");
    }
    world.assert_clean();
}

/// What differs each time it is rendered stays until a value that it asks for changes: no second rendering of the same values, and
/// no restart, makes it another.
#[test]
fn j4_a_template_keeps_its_text_until_what_it_asks_for_changes() {
    need_root!();
    let world = World::new();
    let values = world.file("values.json", r#"{"a": "one", "b": "one"}"#);
    let random = r#"{{ sprig_genPrivateKey "ed25519" }}{{ timestamp "05.000000000" }} {{ key "a" }}"#;
    let templates = format!(
        "{}{}{}",
        template(random, "secrets/key", "change_mode = \"restart\""),
        template("NOW={{ timestamp \"05.000000000\" }}", "local/env", "env = true"),
        template("{{ key \"b\" }}", "local/b", "change_mode = \"noop\"")
    );
    let script = "n=$(($(cat local/n 2>/dev/null || echo 0)+1)); echo $n > local/n; echo start $n $NOW.; \
                  while :; do sleep 0.05; done";
    let running = start(&world, &job(&templates, script), &values);
    wait_for_text(&running.stdout, "start 1 ");
    let (key, b) = (glob(&world, "t/secrets/key"), glob(&world, "t/local/b"));
    let first = std::fs::read_to_string(&key).unwrap();
    assert!(first.starts_with("-----BEGIN PRIVATE KEY-----") && first.ends_with(" one\n"), "{first}");
    // Another value changes: the template that asks for it is rendered, the others are left alone.
    replace(&values, r#"{"a": "one", "b": "two"}"#);
    wait_for_file(&b, "two\n");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), first);
    // A restart is not a reason either, nor is a value that goes and comes back.
    world.done(&["restart", "t"]);
    wait_for_text(&running.stdout, "start 2 ");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), first);
    replace(&values, r#"{"b": "two"}"#);
    replace(&values, r#"{"a": "one", "b": "three"}"#);
    wait_for_file(&b, "three\n");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), first);
    // A change of its own value is.
    replace(&values, r#"{"a": "two", "b": "three"}"#);
    wait_for_text(&running.stdout, "start 3 ");
    let second = std::fs::read_to_string(&key).unwrap();
    assert!(second.ends_with(" two\n") && second[..120] != first[..120], "{second}");
    let out = end(running, &world);
    let times: Vec<&str> = out.stdout.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(times.len() == 3 && times.iter().all(|time| *time == times[0]), "no start but these, at one time: {out:?}");
}
