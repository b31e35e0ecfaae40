//! Job files that somebody means ill by, given to the real binary: each ends with 125 within 10 seconds and below 600 MB, and
//! says why in a few lines that do nothing to a terminal. Set-up of a job can be left at any step.
//!
//! `AGENTBIN_FULL=1` runs all 2,000 generated files instead of a slice of them.

#[path = "support/world.rs"]
mod world;

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use world::{Out, Running, World, batch, need_root, seconds, signal};

/// Time of the processor that a run may take; a machine that has others to serve may take three times as long.
const MOST_SECONDS: u32 = 10;
/// Memory of any run of this program, in KiB.
const MOST_KIB: i64 = 600_000;
/// What is said of a file at most.
const LONGEST_OUTPUT: usize = 40_000;
/// Generated files, and the slice of them that runs by default.
const GENERATED: u64 = 2000;
const SLICE: u64 = 60;

/// Runs a file with a limit of memory, so that a failure cannot fill the machine.
fn limited(world: &World, args: &[&str]) -> Command {
    let run = world.command(args);
    let mut command = Command::new("sh");
    let limits = format!("ulimit -v 1500000 && ulimit -t {} && exec \"$0\" \"$@\"", MOST_SECONDS * world::slower());
    command.args(["-c", &limits]).arg(run.get_program()).args(run.get_args());
    command.env("XDG_RUNTIME_DIR", world.path("")).stdin(Stdio::null());
    command
}

/// What must be true of every hostile file.
fn refused(world: &World, name: &str, text: &str, args: &[&str]) -> Out {
    let file = world.file(&format!("{name}.hcl"), text);
    let mut command = limited(world, args);
    let mut running = World::start_command({
        command.arg(&file);
        command
    });
    let began = Instant::now();
    let out = running.finish();
    let took = began.elapsed();
    let shown: String = out.stderr.chars().take(500).collect();
    println!("{name}: {took:?}");
    assert_eq!(out.status, 125, "{name}: {shown}");
    assert!(took < seconds(30), "{name} took {took:?}: {shown}");
    assert!(out.stdout.is_empty() && out.stderr.len() < LONGEST_OUTPUT, "{name}: {} bytes: {shown}", out.stderr.len());
    assert!(!out.stderr.chars().any(|c| c.is_control() && c != '\n'), "{name}: {:?}", out.stderr);
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    assert!(peak < MOST_KIB, "{name}: {peak} KiB: {shown}");
    out
}

/// Heredocs in heredocs, around a text of so many bytes.
fn heredocs(depth: usize, bytes: usize) -> String {
    (0..depth).fold("x".repeat(bytes), |inner, i| format!("${{<<-E{i}\n{inner}\nE{i}\n}}"))
}

/// Arguments whose names a table of FNV-1a hashes puts into one place.
fn same_hashes(count: usize) -> String {
    const PRIME: u64 = 0x0100_0000_01b3;
    const LOW: u64 = (1 << 22) - 1;
    const CHARS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    // Newton's way to the inverse of an odd number.
    let inverse = (0..6).fold(PRIME, |x, _| x.wrapping_mul(2u64.wrapping_sub(PRIME.wrapping_mul(x))));
    let back = |hash: u64, byte: u8| (hash.wrapping_mul(inverse) ^ u64::from(byte)) & LOW;
    let mut ends = std::collections::HashMap::from([(back(0, 0xff), String::new())]);
    for _ in 0..3 {
        let mut longer = std::collections::HashMap::new();
        for (hash, end) in &ends {
            for byte in CHARS {
                longer.entry(back(*hash, *byte)).or_insert_with(|| format!("{}{end}", char::from(*byte)));
            }
        }
        ends = longer;
    }
    let (mut text, mut found) = (String::new(), 0);
    for number in 0u64.. {
        let name = format!("a{number}_");
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        if let Some(end) = ends.get(&(hash & LOW)) {
            let _ = writeln!(text, "{name}{end} = 1");
            found += 1;
            if found == count {
                break;
            }
        }
    }
    text
}

/// A job around the inside of its only task, which begins in line 2.
fn around(locals: &str, task: &str) -> String {
    format!(
        "locals {{\n{locals}\n}}\njob \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{\ndriver = \"raw_exec\"\n{task}\n}}\n}}\n}}\n"
    )
}

fn locals(first: &str, count: usize, next: impl Fn(usize) -> String) -> String {
    let mut text = format!("a0 = {first}\n");
    for i in 1..=count {
        let _ = writeln!(text, "a{i} = {}", next(i - 1));
    }
    text
}

/// Evaluation that asks for more than any machine has: the message names the line.
#[test]
fn evaluation_has_a_budget_and_names_who_spent_it() {
    let world = World::new();
    let nested = |function: &dyn Fn(&str) -> String| {
        let mut text = "\"xxxxxxxxxxxxxxxx\"".to_owned();
        for _ in 0..30 {
            text = function(&text);
        }
        text
    };
    let deep = |inner: &str| around("ok = 1", &format!("config {{\nargs = [{inner}]\n}}"));
    let long = "x".repeat(6 << 20);
    let three = "[for a in range(1000) : [for b in range(1000) : [for c in range(1000) : a + b + c]]]";
    let cases: Vec<(&str, String, u32)> = vec![
        ("loops", around(&format!("a = 1\nb = {three}\nc = 2"), ""), 3),
        ("replace", around(&format!("a = {}", nested(&|t| format!("replace({t}, \"x\", \"xxxxxxxxxxxxxxxx\")"))), ""), 2),
        ("join", around("a = [for i in range(1000) : \"x\"]\nb = join(join(join(\"x\", local.a), local.a), [for i in range(1024) : join(join(\"xxxxxxxx\", local.a), local.a)])\n", ""), 3),
        ("format", around(&format!("a = {}", nested(&|t| format!("format(\"%s%s%s%s%s%s%s%s\", {}{t})", "\"a\", ".repeat(7)))), "").replace("\"a\", ", "format(\"%1024s%1024s\", \"a\", \"b\"), "), 0),
        ("setproduct", around("a = range(1000)\nb = setproduct(local.a, local.a, local.a)", ""), 3),
        ("split", around("a = file(\"seven\")\nb = split(\"\", local.a)", ""), 3),
        ("csv", around("a = \"a\\n${replace(file(\"seven\"), \"xx\", \"x\\n\")}\"\nb = csvdecode(local.a)", ""), 3),
        ("json", around("a = replace(file(\"seven\"), \"xx\", \"1,\")\nb = jsondecode(\"[${local.a}1]\")", ""), 3),
        ("yaml", around("a = \"a: &a [x,x,x,x,x,x,x,x,x]\\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f]\"\nb = yamldecode(local.a)", ""), 3),
        ("regex", around("a = substr(file(\"seven\"), 0, 1000000)\nb = regex_replace(local.a, \".*[^x]|x\", \"y\")", ""), 3),
        ("regex-size", around("a = regex_replace(\"x\", \"((((a{200}){200}){200}){200})\", \"y\")", ""), 2),
        ("regex-result", around("a = replace(file(\"seven\"), \"xxxxxxxx\", \"$0\")\nb = regex_replace(file(\"seven\"), \"x+\", local.a)", ""), 3),
        ("bcrypt", around("a = bcrypt(\"x\", 31)", ""), 2),
        ("bcrypts", around("a = [for i in range(1000) : bcrypt(\"x\", 14)]", ""), 2),
        ("strings", around(&locals("\"xxxxxxxx\"", 100, |i| format!("\"${{local.a{i}}}${{local.a{i}}}\"")), ""), 0),
        ("lists", around(&locals("[1]", 100, |i| format!("[local.a{i}, local.a{i}]")), ""), 0),
        ("concat", around(&locals("[1]", 100, |i| format!("concat(local.a{i}, local.a{i})")), ""), 0),
        ("json-in-json", around(&locals("\"\\\"\"", 100, |i| format!("jsonencode(local.a{i})")), ""), 0),
        ("try", around(&format!("a = [for i in range(1000) : try({three}, 1)]"), ""), 2),
        ("can", around(&format!("a = can({three})\nb = can(local.a)"), ""), 2),
        ("misspelt", around(&(locals("1", 20_000, |i| format!("{i}")) + "z = [for a in range(1000) : [for b in range(1000) : try(local.a2000O, a)]]"), ""), 0),
        ("dynamic", "job \"j\" {\ngroup \"g\" {\ndynamic \"task\" {\nfor_each = setproduct(range(1000), range(1000))\nlabels = [\"x\"]\ncontent {\ndriver = \"raw_exec\"\n}\n}\n}\n}\n".to_owned(), 4),
        ("copies", "job \"j\" {\ngroup \"g\" {\ncount = 1000\ntask \"t\" {\ndriver = \"raw_exec\"\nmeta {\na = file(\"seven\")\n}\n}\n}\n}\n".to_owned(), 3),
        ("operands", deep(&"1%2/{\n".repeat(60)), 0),
        ("operands-of-text", deep(&format!("{}{}", "1-1-(".repeat(10), "1,\n".repeat(100_000))), 0),
        ("splats", deep(&format!("[1]{}", "[*]".repeat(100_000))), 0),
        ("attribute-splats", deep(&format!("[1]{}", ".*".repeat(100_000))), 0),
        ("parentheses", deep(&format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000))), 0),
        ("huge-number", deep("1e999999999"), 9),
        ("digits", deep(&"9".repeat(1_000_000)), 9),
        ("marks", deep(&"1,".repeat(3_000_000)), 0),
        ("blocks", "a {}\n".repeat(1_000_000), 0),
        ("mistakes", around("ok = 1", &(0..60_000).map(|i| format!("drivr{i} = 1\n")).collect::<Vec<_>>().concat()), 0),
        ("long-mistake", around("ok = 1", &format!("kill_signal = \"{}\"", "\\u001b[2J".repeat(100_000))), 8),
        ("duration", around("ok = 1", "kill_timeout = \"170141183460469231731687303715884105.9us\""), 8),
        ("zero", around("a = file(\"/dev/zero\")", ""), 2),
        ("directory", around("a = file(\"/\")", ""), 2),
        ("too-large", around("a = file(\"nine\")", ""), 2),
        ("unending", around("a = file(\"/proc/kmsg\")", ""), 2),
        // What is kept or said once for each block, or made once for each turn.
        ("label", format!("{{\"job\":{{\"j\":{{\"group\":{{\"g\":{{\"task\":{{\"{long}\":[{}{{}}]}}}}}}}}}}}}", "{},".repeat(150_000)), 1),
        ("dynamic-label", format!("{{\"job\":{{\"j\":{{\"dynamic\":{{\"{long}\":[{}{{}}]}}}}}}}}", "{},".repeat(150_000)), 1),
        ("long-name", around("ok = 1", "").replace("task \"t\"", &format!("task \"{long}\"")).replace("driver = \"raw_exec\"", &"template {}\n".repeat(90_000)), 0),
        ("content", format!("job \"j\" {{\ngroup \"g\" {{\ndynamic \"task\" {{\nfor_each = range(1000)\nlabels = [\"t${{task.value}}\"]\ncontent {{\ndriver = \"raw_exec\"\nconfig {{\n{}}}\n}}\n}}\n}}\n}}\n", "x {}\n".repeat(120_000)), 0),
        ("content-passed-over", format!("job \"j\" {{\ngroup \"g\" {{\ndynamic \"service\" {{\nfor_each = range(1000)\ncontent {{\n{}}}\n}}\n}}\n}}\n", "check {}\n".repeat(120_000)), 0),
        ("described", around("s = \"${attr.x}${file(\"seven\")}\"\na = [for i in range(1000) : [for j in range(1000) : try(local.s.x, i)]]", ""), 3),
        ("whole-map", around("s = file(\"seven\")", "meta {\na = jsonencode([for i in range(1000) : [for j in range(1000) : try([for v in local : v.nope], 0)]])\n}"), 0),
        ("no-text", around("a = [for i in range(1000) : [for j in range(1000) : try(file(\"bytes\"), 0)]]", ""), 2),
        // What the parser, or a function, takes out of all proportion.
        ("labels", format!("job {}{{}}\n", "a ".repeat(3_900_000)), 1),
        ("config-labels", around("ok = 1", &format!("config {{\nx {}{{}}\n}}", "\"a\" ".repeat(100_000))), 9),
        ("object", around(&format!("a = {{{}}}", (0..190_000).map(|i| format!("k{i}=1,")).collect::<Vec<_>>().concat()), ""), 2),
        ("same-hashes", around(&same_hashes(190_000), ""), 0),
        ("heredocs", around(&format!("a = <<-E\n{}\nE", heredocs(58, 4 << 20)), ""), 0),
        ("empty-heredocs", around(&(0..60_000).map(|i| format!("a{i} = <<E{i}\nE{i}\n")).collect::<Vec<_>>().concat(), ""), 0),
        ("nested-empty-heredocs", around("ok = 1", &format!("env {{\nA = <<X\n{}%{{ x }}{}X\n}}", "${<<E\nE\n}".repeat(50), "\nE\n}\n".repeat(50))), 0),
        ("header", around("h = \"\\\"\\n${substr(file(\"seven\"), 0, 1000000)}\\\"\\n\"\na = csvdecode(\"${local.h}${join(\"\\n\", range(1000))}\")", ""), 3),
        ("escapes", around(&format!("a = [replace(substr(file(\"seven\"), 0, 7000000), \"x\", \"<\")]\nb = format(\"{}\", local.a)", "%[1]v".repeat(12)), ""), 3),
        ("patterns", around(&format!("a = [for i in range(1000) : try(regex_replace(\"x\", \"(?i){}\", \"y\"), 1)]", "\\\\PL".repeat(1000)), ""), 2),
        ("hidden", format!("{{\"locals\":{{\"a\":\"${{[{}1]}}\"}},\"job\":{{}}}}", "1\\u002c".repeat(900_000)), 1),
        ("delimiter", around("ok = 1", "template {\ndestination = \"local/x\"\ndata = \"x\"\nright_delimiter = substr(file(\"seven\"), 0, 3000000)\n}"), 11),
        ("filesets", around("a = [for i in range(1000) : [for j in range(1000) : try(fileset(\"/nowhere\", \"[a-z][a-z][a-z][a-z]\"), 0)]]", ""), 2),
    ];
    std::fs::write(world.path("bytes"), vec![0xff; 7 << 20]).unwrap();
    world.file("seven", &"x".repeat(7 << 20));
    world.file("nine", &"x".repeat(9 << 20));
    for (name, text, line) in cases {
        let out = refused(&world, name, &text, &[]);
        let place = if line == 0 { format!("{name}.hcl:") } else { format!("{name}.hcl:{line}: ") };
        assert!(out.stderr.contains(&place), "{name}: {}", out.stderr.chars().take(600).collect::<String>());
        let lines = out.stderr.lines().count();
        // Twenty mistakes with their lines, and how many more there are.
        assert!(lines <= 20 * 5 + 1, "{name}: {lines} lines");
    }
    world.assert_clean();
}

#[test]
fn a_fifo_in_place_of_any_file_is_not_waited_for() {
    let world = World::new();
    let fifo = world.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let job = around(&format!("a = file({fifo:?})"), "");
    let out = refused(&world, "fifo", &job, &[]);
    assert!(out.stderr.contains("fifo.hcl:2: ") && out.stderr.contains("not a regular file"), "{out:?}");
    // The operator's own files may be pipes; one that nobody writes to is empty.
    let out = refused(&world, "variables", &around("a = 1", ""), &["--var-file", fifo.to_str().unwrap()]);
    assert!(!out.stderr.contains("fifo"), "{out:?}");
    let out: Out = limited(&world, &[]).arg(&fifo).output().unwrap().into();
    assert!(out.status == 125 && out.stderr.contains("the file has no job"), "{out:?}");
    std::fs::remove_file(&fifo).unwrap();
    world.assert_clean();
}

/// A large file that somebody could have written is read quickly.
#[test]
fn a_real_file_of_thousands_of_lines_passes() {
    let world = World::new();
    let mut text = "locals {\nhosts = { for i in range(1000) : \"host-${i}\" => { address = \"10.0.${floor(i / 256)}.${i % 256}\", zone = \"z${i % 3}\" } }\n".to_owned();
    for i in 0..3000 {
        let _ = writeln!(text, "name_{i} = \"${{local.hosts[\"host-{}\"].address}}:{}\"", i % 1000, 2000 + i);
    }
    text.push_str("zones = { for name, host in local.hosts : host.zone => name... }\n}\njob \"j\" {\n");
    for i in 0..200 {
        let _ = writeln!(
            text,
            "group \"g{i}\" {{\ntask \"t\" {{\ndriver = \"no-such\"\nenv {{\nA = local.name_{i}\nB = join(\",\", [for n, h in local.hosts : h.address if h.zone == \"z1\"])\n}}\n}}\n}}"
        );
    }
    text.push_str("}\n");
    let out = refused(&world, "real", &text, &[]);
    let unknown = out.stderr.matches("unknown driver").count();
    let evaluated = unknown == 20 && out.stderr.contains("\n180 more lines are not shown");
    assert!(evaluated, "{unknown}: {:?}", out.stderr.lines().last());
}

/// The names of everything, with what a terminal would obey, and too long for file names.
#[test]
fn names_are_what_a_terminal_shows_and_a_file_can_be_called() {
    let world = World::new();
    let job = |job: &str, group: &str, task: &str, port: &str| {
        format!(
            "job \"{job}\" {{\ngroup \"{group}\" {{\nnetwork {{\nport \"{port}\" {{}}\n}}\ntask \"{task}\" {{\ndriver = \"raw_exec\"\n}}\n}}\n}}\n"
        )
    };
    let wrong =
        ["a\\u001b[2J", "a\\nb", "a\\u009bb", "a\\u007f", "a\\u202eb", "a\\u2066", "a\\u200b", &"x".repeat(255)];
    for wrong in wrong {
        for (text, line) in [
            (job("j", "g", wrong, "p"), 6),
            (job("j", wrong, "t", "p"), 2),
            (job("j", "g", "t", wrong), 4),
            (job(&format!("{wrong}{}", "x".repeat(wrong.len() / 255)), "g", "t", "p"), 1),
        ] {
            let out = refused(&world, "names", &text, &[]);
            assert!(out.stderr.contains(&format!("names.hcl:{line}: the ")), "{wrong}: {out:?}");
        }
    }
    world.assert_clean();
}

/// What a job, a driver or a plugin says is shown, not obeyed; the task's own output is its own.
#[test]
fn what_others_say_is_escaped_before_a_terminal_sees_it() {
    need_root!();
    let world = World::new();
    let evil = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    let out = world.run_text(&batch("raw_exec", "/no\\u001b]0;x\\u0007\\u009b2J", "[]"), &[]);
    assert!(out.status == 127 && !evil(&out.stderr) && out.stderr.contains("\\u{1b}]0;x"), "{out:?}");
    let out = world.run_text(&batch("raw_exec", "/no\\u009b2J\\u202e", "[]"), &["--json"]);
    assert!(out.status == 127 && !evil(&out.stdout), "{out:?}");
    assert!(!out.stdout.contains('\u{202e}') && !out.stderr.contains('\u{202e}'), "{out:?}");
    let out = world.run_text(&batch("raw_exec", "/bin/printf", r#"["\\033[1mx\\n"]"#), &["--quiet"]);
    assert!(out.status == 0 && out.stdout == "\x1b[1mx\n", "{out:?}");
    let script = "printf '\\033[2Jlog\\n' >&2; printf '\\033[2J|nonsense\\n'";
    let out = world.agentbin(&["plugin", "launch", "/bin/sh", "--", "-c", script]);
    assert!(out.status != 0 && !evil(&out.stderr) && !evil(&out.stdout), "{out:?}");
    world.assert_clean();
}

/// A run is left at each step of its set-up, by a signal and by `--timeout`. The shortest of some times counts: the machine
/// has others to serve.
#[test]
fn set_up_is_left_at_any_step_within_200_ms() {
    need_root!();
    let world = World::new();
    let copied = world.path("copied");
    std::fs::create_dir(&copied).unwrap();
    // Hours of copying, and no byte of disk: it has none.
    std::fs::File::create(copied.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let many = batch("raw_exec", "/bin/true", "[]").replace("restart {", "count = 1000\nrestart {");
    let template = "dynamic \"template\" {\nfor_each = range(12)\ncontent {\ndestination = \"local/x${template.value}\"\ndata = local.text\n}\n}\nconfig {";
    // The text is made once: making it is not the step that is asked for.
    let text = "locals {\ntext = replace(file(\"text\"), \"xxxxxxxxxxxxxxxxxxxxxxxx\", \"{{env `A`}}{{if env `A`}}\\n{{end}}\")\n}\n";
    let templates = text.to_owned() + &batch("raw_exec", "/bin/true", "[]").replace("config {", template);
    let artifact = format!("artifact {{\nsource = {copied:?}\ndestination = \"local/x\"\n}}\nconfig {{");
    let artifacts = batch("raw_exec", "/bin/true", "[]").replace("config {", &artifact);
    world.file("text", &"x".repeat(240_000));
    let [many, templates, artifacts] = [("many", many), ("templates", templates), ("artifacts", artifacts)]
        .map(|(n, t)| world.file(&format!("{n}.hcl"), &t));
    let below = |world: &World, name: &str| {
        let allocs = std::fs::read_dir(world.data_dir().join("alloc")).into_iter().flatten().flatten();
        allocs.filter(|alloc| alloc.path().join(name).exists()).count()
    };
    type Reached<'a> = Box<dyn Fn(&Running) -> bool + 'a>;
    let steps: Vec<(&str, Vec<&str>, Reached<'_>, u32)> = vec![
        // Nothing comes from standard input.
        ("reading", vec!["-"], Box::new(|run| threads(run) > 1), 5),
        ("allocations", vec![many.to_str().unwrap()], Box::new(|_| world.allocations() >= 3), 5),
        ("templates", vec![templates.to_str().unwrap()], Box::new(|_| below(&world, "t/local") > 0), 5),
        ("artifacts", vec![artifacts.to_str().unwrap()], Box::new(|_| below(&world, "t/local/x/sparse") > 0), 5),
    ];
    for (name, args, is_reached, tries) in &steps {
        let mut shortest = Duration::MAX;
        for _ in 0..*tries {
            let mut command = world.command(args);
            command.stdin(Stdio::piped());
            let mut running = World::start_command(command);
            let deadline = Instant::now() + seconds(20);
            while !is_reached(&running) {
                assert!(
                    Instant::now() < deadline && running.child.try_wait().unwrap().is_none(),
                    "{name} is not reached"
                );
                std::thread::yield_now();
            }
            let began = Instant::now();
            signal(&running.child, "SIGINT");
            let out = running.finish();
            shortest = shortest.min(began.elapsed());
            assert_eq!(out.status, 130, "{name}: {out:?}");
            assert!(!out.stderr.contains("Started"), "{name}: {out:?}");
            world.assert_clean();
        }
        println!("{name}: left after {shortest:?}");
        assert!(shortest < Duration::from_millis(200) * world::slower(), "{name}: {shortest:?}");
        let mut args = args.clone();
        args.extend(["--timeout", "300ms"]);
        let mut command = world.command(&args);
        command.stdin(Stdio::piped());
        let began = Instant::now();
        let out = World::start_command(command).finish();
        assert!(out.status == 124 && out.stderr.contains("--timeout ran out"), "{name}: {out:?}");
        assert!(began.elapsed() < seconds(3), "{name}: {:?}", began.elapsed());
        world.assert_clean();
    }
}

/// Of a process that lives.
fn threads(running: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", running.child.id())).map_or(0, Iterator::count)
}

#[test]
fn more_tasks_than_a_run_has_are_refused_at_their_place() {
    let world = World::new();
    let text = batch("raw_exec", "/bin/true", "[]").replace("restart {", "count = 20000\nrestart {");
    let out = refused(&world, "count", &text, &[]);
    assert!(
        out.stderr.contains("count.hcl:3: the job has 20000 tasks") && out.stderr.contains("at most 1000"),
        "{out:?}"
    );
    // A cluster runs it.
    let count = world.file("count.hcl", &text);
    let out = world.agentbin(&["validate", count.to_str().unwrap()]);
    assert!(out.status == 0 && out.stderr.contains("warning: ") && out.stderr.contains("20000 tasks"), "{out:?}");
    let groups =
        (0..60).map(|i| format!("group \"g{i}\" {{\nvault {{\n}}\ntask \"t\" {{\ndriver = \"raw_exec\"\n}}\n}}\n"));
    let many = format!("job \"j\" {{\n{}}}\n", groups.collect::<String>());
    let out = refused(&world, "refusals", &many, &[]);
    assert!(out.stderr.matches("vault in group").count() == 20, "{out:?}");
    assert!(out.stderr.contains("more than 30 others are not shown"), "{out:?}");
    let nested = "template {\ndestination = \"local/x\"\ndata = file(\"nested\")\n}\nconfig {";
    world.file("nested", &("{{if true}}".repeat(30_000) + &"{{end}}".repeat(30_000)));
    let text = batch("raw_exec", "/bin/true", "[]").replace("config {", nested);
    need_root!();
    let mut command = limited(&world, &[]);
    command.arg(world.file("nested.hcl", &text)).process_group(0);
    let out: Out = command.output().unwrap().into();
    assert!(out.status == 125 && out.stderr.contains("more than 100 conditions, loops and blocks nest"), "{out:?}");
    world.assert_clean();
}

/// Numbers from a seed, the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }

    /// An expression that makes more of what it is made of.
    fn expression(&mut self, depth: u64, names: u64) -> String {
        if depth == 0 {
            return match self.roll(9) {
                0 => "\"xxxxxxxx\"".to_owned(),
                1 => "range(1000)".to_owned(),
                2 => "{ a = 1, b = [2] }".to_owned(),
                3 => "file(\"seven\")".to_owned(),
                4 => "\"${NOMAD_TASK_NAME}\"".to_owned(),
                5 => format!("{}", self.roll(u64::MAX)),
                6 => self
                    .pick(&["null", "true", "1e308", "-1", "\"\"", "[]", "{}", "\"\\u001b[2J\"", "\"1,2\\n3,4\""])
                    .to_owned(),
                _ if names == 0 => "[1]".to_owned(),
                _ => format!("local.a{}", self.roll(names)),
            };
        }
        let mut inner = || self.expression(depth - 1, names);
        let (a, b, c) = (inner(), inner(), inner());
        match self.roll(40) {
            0 => format!("[{a}, {a}, {b}]"),
            1 => format!("\"${{{a}}}${{{a}}}\""),
            2 => format!("concat({a}, {a}, {b})"),
            3 => format!("join({a}, {b})"),
            4 => format!("replace({a}, {b}, {c})"),
            5 => format!("setproduct({a}, {b}, {c})"),
            6 => format!("[for x in {a} : {b}]"),
            7 => format!("{{ for k, v in {a} : \"${{k}}\" => {b} }}"),
            8 => format!("format(\"%1000s%s%v\", {a}, {b}, {c})"),
            9 => format!("formatlist(\"%v-%v\", {a}, {b})"),
            10 => format!("jsonencode({a})"),
            11 => format!("jsondecode({a})"),
            12 => format!("yamldecode({a})"),
            13 => format!("yamlencode({a})"),
            14 => format!("csvdecode({a})"),
            15 => format!("split({a}, {b})"),
            16 => format!("regex_replace({a}, \"(x*)*|.\", {b})"),
            17 => format!("try({a}, {b}, {c})"),
            18 => format!("can({a}) ? {b} : {c}"),
            19 => format!("{a}[*].x[*]"),
            20 => format!("distinct({a})"),
            21 => format!("flatten([{a}, [{a}, {b}]])"),
            22 => format!("indent(1000, {a})"),
            23 => format!("bcrypt({a}, {b})"),
            24 => format!("sha512({a})"),
            25 => format!("merge({a}, {b})"),
            26 => format!("setunion({a}, {b})"),
            27 => format!("setintersection({a}, {b})"),
            28 => format!("substr({a}, {b}, {c})"),
            29 => format!("cidrsubnets(\"10.0.0.0/8\", [for x in {a} : 4]...)"),
            30 => format!("urlencode({a})"),
            31 => format!("trim({a}, {b})"),
            32 => format!("\"%{{ for x in {a} }}${{{b}}}%{{ endfor }}\""),
            33 => format!("base64encode({a})"),
            34 => format!("zipmap({a}, {b})"),
            35 => format!("convert({a}, list(list(string)))"),
            36 => format!("chunklist({a}, 1)"),
            37 => format!("pow({a}, {b})"),
            38 => format!("sort({a})"),
            _ => format!("({a}) + ({b})"),
        }
    }

    /// A file that asks for something out of all proportion, or for nonsense. No machine has its driver.
    fn file(&mut self) -> String {
        let count = 1 + self.roll(40);
        let mut text = String::new();
        for i in 0..count {
            let depth = self.roll(4);
            let _ = writeln!(text, "a{i} = {}", self.expression(depth, i));
        }
        let depth = self.roll(5);
        let task = format!("env {{\nA = {}\n}}\n", self.expression(depth, count));
        let mut file = around(&text, &task).replace("\"raw_exec\"", "\"no-such\"");
        if self.roll(4) == 0 {
            // Broken somewhere: cut, or with something in it that belongs elsewhere.
            let mut at = usize::try_from(self.roll(file.len() as u64)).unwrap();
            while !file.is_char_boundary(at) {
                at -= 1;
            }
            match self.roll(2) {
                0 => file.truncate(at),
                _ => file.insert_str(
                    at,
                    self.pick(&["${", "%{", "\"", "<<EOT\n", "}", "{", "dynamic \"x\" {", "\u{1b}", "((((", "[*]"]),
                ),
            }
        }
        file
    }
}

#[test]
fn generated_files_end_in_time_and_memory() {
    let full = std::env::var("AGENTBIN_FULL").is_ok_and(|full| full == "1");
    let world = World::new();
    world.file("seven", &"x".repeat(7 << 20));
    let step = if full { 1 } else { GENERATED / SLICE };
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let began = Instant::now();
    let slowest = std::sync::Mutex::new((Duration::ZERO, 0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed) as u64 * step;
                    if seed >= GENERATED || failed.load(Ordering::Relaxed) > 0 {
                        return;
                    }
                    let text = Dice(seed << 32).file();
                    let one = Instant::now();
                    let ended = std::panic::catch_unwind(|| refused(&world, &format!("seed{seed}"), &text, &[]));
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = (*slowest).max((one.elapsed(), seed));
                    if ended.is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    println!("{:?}, the slowest {:?}", began.elapsed(), slowest.lock().unwrap());
    assert_eq!(failed.load(Ordering::Relaxed), 0, "see the file of that seed above");
    world.assert_clean();
}

/// To open a FIFO lets its writer go on, and to open a device does what the device does: they are looked at before.
#[test]
fn what_is_no_file_is_not_opened_to_find_that_out() {
    let world = World::new();
    let fifo = world.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Opening waits for a reader, who would be there for a moment.
    let script = ["-c", "exec 3>\"$0\"; echo opened", fifo.to_str().unwrap()];
    let mut writer = Command::new("sh").args(script).stdout(Stdio::piped()).spawn().unwrap();
    let is_waiting = || {
        let place = std::fs::read_to_string(format!("/proc/{}/wchan", writer.id())).unwrap_or_default();
        place.contains("partner") || place.contains("fifo")
    };
    let deadline = Instant::now() + seconds(10);
    while !is_waiting() {
        assert!(Instant::now() < deadline, "it does not wait");
        std::thread::yield_now();
    }
    let job = around(&format!("a = [for i in range(200) : try(file({fifo:?}), i)]\nb = file({fifo:?})"), "");
    let out = refused(&world, "fifo", &job, &[]);
    assert!(out.stderr.contains("not a regular file"), "{out:?}");
    assert!(writer.try_wait().unwrap().is_none(), "the writer went on");
    writer.kill().unwrap();
    writer.wait().unwrap();
    std::fs::remove_file(&fifo).unwrap();
    world.assert_clean();
}

/// Two tasks at once, as more do not render theirs.
#[test]
fn templates_take_room_by_their_size() {
    need_root!();
    let world = World::new();
    world.file("pieces", &"{{1}}".repeat(1_600_000));
    world.file("deletes", &"\u{7f}".repeat(4 << 20));
    let quotes = format!("{{{{printf `{}` {}}}}}", "%q".repeat(14), "(env `NOMAD_META_A`) ".repeat(14));
    for (name, data, said) in [
        ("pieces", "file(\"pieces\")".to_owned(), "more than 400000 texts, actions and words"),
        ("quotes", format!("{quotes:?}"), "%q takes at most"),
    ] {
        let task = |task: &str| {
            format!(
                "task \"{task}\" {{\ndriver = \"raw_exec\"\nmeta {{\nA = file(\"deletes\")\n}}\nconfig {{\ncommand = \"/bin/true\"\n}}\n\
                 restart {{\nattempts = 0\nmode = \"fail\"\n}}\ntemplate {{\ndestination = \"local/x\"\ndata = {data}\n}}\n}}\n"
            )
        };
        let text = format!("job \"j\" {{\ntype = \"batch\"\ngroup \"g\" {{\n{}{}}}\n}}\n", task("a"), task("b"));
        let mut command = limited(&world, &[]);
        command.arg(world.file(&format!("{name}.hcl"), &text));
        let out = World::start_command(command).finish();
        assert!(out.status == 125 && out.stderr.contains(said), "{name}: {out:?}");
        let peak = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
        assert!(peak < MOST_KIB, "{name}: {peak} KiB");
    }
    world.assert_clean();
}

/// An engine that answers what is asked of itself, and never what is asked of an image.
fn dumb_engine(socket: &std::path::Path) -> std::sync::mpsc::Receiver<String> {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let (tell, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut client, _)) = listener.accept() {
            let mut line = String::new();
            let mut reader = BufReader::new(client.try_clone().unwrap());
            if reader.read_line(&mut line).is_err() {
                continue;
            }
            let mut header = String::new();
            while reader.read_line(&mut header).is_ok_and(|n| n > 2) {
                header.clear();
            }
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            let body = if path.ends_with("/_ping") { "OK" } else { "{}" };
            if path.contains("/images/") {
                // It is kept, and nothing is said.
                held.push(client);
            } else if path.contains("/containers/json") {
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]");
            } else {
                let head =
                    "HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Type: application/json\r\nConnection: close\r\n";
                let _ = write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
            }
            if tell.send(path).is_err() {
                return;
            }
        }
    });
    asked
}

#[test]
fn a_start_that_waits_for_an_image_is_left_within_200_ms() {
    need_root!();
    let world = World::new();
    // Not where the leftovers of a run are looked for.
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("engine.sock");
    let asked = dumb_engine(&socket);
    let job = batch("docker", "/bin/true", "[]").replace("config {", "config {\nimage = \"example:1\"");
    let file = world.file("image.hcl", &job);
    for signalled in [true, false] {
        let mut args = vec![file.to_str().unwrap()];
        if !signalled {
            args.extend(["--timeout", "2s"]);
        }
        let mut command = world.command(&args);
        command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
        let mut running = World::start_command(command);
        let deadline = Instant::now() + seconds(20);
        let mut path = String::new();
        while !path.contains("/images/") {
            path = asked.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap();
        }
        let began = Instant::now();
        if signalled {
            signal(&running.child, "SIGINT");
        }
        let out = running.finish();
        let took = began.elapsed();
        println!("left after {took:?}");
        assert_eq!(out.status, if signalled { 130 } else { 124 }, "{out:?}");
        let most = Duration::from_millis(if signalled { 200 } else { 2500 }) * world::slower();
        assert!(took < most, "{took:?}: {out:?}");
        world.assert_clean();
    }
}
