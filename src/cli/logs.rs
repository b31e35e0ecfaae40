//! `agentbin logs`: the output of a task so far, and what it prints from now on.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::task::JoinSet;

use super::args::Tail;
use super::output::Stream;
use super::revive::revive;
use super::runs::{Keeper, Purpose, SHORTEST, World, wait_for};
use super::{LogsArgs, complain};
use crate::alloc::{AllocDir, Record, machine};
use crate::logs::follower::{Finisher, Follower, Output, Start};
use crate::spec::AllocId;
use crate::spec::collections::BTreeSet;
use crate::sys::task::boxed;

/// Number of lines for `--tail` without a number.
const TAIL: u64 = 10;
/// How often to check whether a followed allocation goes on.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The logs of an allocation.
struct Place {
    id: String,
    dir: PathBuf,
    /// Its record, which is removed with it; `None` if it has ended.
    record: Option<PathBuf>,
}

pub(super) fn run(args: &LogsArgs) -> anyhow::Result<i32> {
    let data_dir = machine::data_dir(args.data_dir.as_deref())?;
    // Logs of a run whose supervisor was killed can be read in any case, but without a supervisor its tasks would not be restarted.
    wait_for(async {
        revive(Some(&data_dir), args.data_dir.is_some()).await;
        Ok(())
    })?;
    let asked = args.task.as_deref().or(args.task_flag.as_deref());
    let (place, of_word) = place(&data_dir, args)?;
    let asked = asked.map(str::to_owned).or(of_word);
    let task = task(&place, asked.as_deref())?;
    let start = match (args.lines, args.bytes, args.tail) {
        (Some(lines), ..) | (None, None, Some(Tail::Lines(lines))) => Start::LastLines(lines),
        (None, Some(bytes), _) => Start::LastBytes(bytes),
        (None, None, Some(Tail::On)) => Start::LastLines(TAIL),
        (None, None, Some(Tail::Off) | None) => Start::Beginning,
    };
    let none = !args.stdout && !args.stderr;
    let streams = [(Stream::Stdout, args.stdout || none), (Stream::Stderr, args.stderr || none && args.follow)];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    crate::sys::task::block_on(&runtime, async {
        let mut reading = JoinSet::new();
        let mut finishers = Vec::new();
        for (stream, _) in streams.into_iter().filter(|(_, wanted)| *wanted) {
            let follower = Follower::open(&place.dir, &format!("{task}.{}", stream.name()), start)
                .with_context(|| format!("cannot read the logs in {}", place.dir.display()))?;
            finishers.push(follower.finisher());
            reading.spawn(boxed(copy(follower, stream)));
        }
        let end = crate::sys::task::spawn(end(place.record.filter(|_| args.follow), finishers));
        while let Some(copied) = reading.join_next().await {
            match copied? {
                // The reader of stdout has gone.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                copied => copied.with_context(|| format!("cannot print the output of task {task:?}"))?,
            }
        }
        end.abort();
        Ok(0)
    })
}

/// Lets the followers finish: at once, or when the allocation has ended.
async fn end(followed: Option<PathBuf>, finishers: Vec<Finisher>) {
    if let Some(record) = followed {
        let mut look = tokio::time::interval(LOOK_EVERY);
        while goes_on(&record) {
            look.tick().await;
        }
    }
    finishers.iter().for_each(Finisher::finish);
}

/// Whether an allocation has its record, tasks that have not ended, and a living supervisor.
fn goes_on(record: &Path) -> bool {
    let Some(record) = Record::read(record).ok().filter(|record| !record.has_ended()) else { return false };
    crate::sys::processes::stat(record.owner.pid)
        .is_ok_and(|stat| stat.is_some_and(|s| s.start_ticks == record.owner.start_ticks && !s.ended))
}

async fn copy(mut follower: Follower, stream: Stream) -> io::Result<()> {
    while let Some(output) = follower.next().await? {
        match (output, stream) {
            (Output::Data(data), Stream::Stdout) => {
                let mut out = io::stdout().lock();
                out.write_all(&data)?;
                out.flush()?;
            }
            (Output::Data(data), Stream::Stderr) => io::stderr().write_all(&data)?,
            (Output::Gap { missing_files }, _) => {
                complain(&format!(
                    "{}: {missing_files} log files were rotated away before they were read",
                    stream.name()
                ));
            }
        }
    }
    Ok(())
}

/// Finds the logs and, if one was named, the task. A name takes precedence over the prefix of an id that it may resemble.
fn place(data_dir: &Path, args: &LogsArgs) -> anyhow::Result<(Place, Option<String>)> {
    let word = args.alloc.as_str();
    let found = |found: Option<Place>| found.map(|place| (place, None));
    if AllocId::parse(word).is_some()
        && let Some(place) = found(find(data_dir, word)?)
    {
        return Ok(place);
    }
    let world = wait_for(World::look(args.data_dir.as_deref(), true))?;
    if !world.is_name(word)
        && word.len() >= SHORTEST
        && let Some(place) = found(find(data_dir, word)?)
    {
        return Ok(place);
    }
    let found = world.find_one(word, Purpose::Look);
    let (found, task) = found.context("a job that ended has logs when it was run with --keep-logs or --detach")?;
    let view = &found.view;
    let record = (!matches!(found.keeper, Keeper::Nobody)).then(|| view.dir.with_extension("json"));
    Ok((Place { id: view.id.clone(), dir: view.logs.clone(), record }, task))
}

/// The only allocation whose id has this prefix: of a run that goes on or was killed, or one whose logs were kept.
fn find(data_dir: &Path, prefix: &str) -> anyhow::Result<Option<Place>> {
    let allocs = data_dir.join("alloc");
    let kept = machine::kept_logs(data_dir);
    let mut ids = BTreeSet::new();
    for dir in [&allocs, &kept] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            ids.extend(AllocId::parse(&name).filter(|id| id.as_str().starts_with(prefix)));
        }
    }
    let mut ids = ids.into_iter();
    match (ids.next(), ids.next()) {
        (Some(id), None) => {
            let dir = AllocDir::new(data_dir, &id).logs();
            let record = allocs.join(format!("{id}.json"));
            Ok(Some(if dir.exists() {
                Place { id: id.to_string(), dir, record: Some(record) }
            } else {
                Place { id: id.to_string(), dir: kept.join(id.as_str()), record: None }
            }))
        }
        (Some(one), Some(other)) => {
            bail!("{prefix:?} begins several allocation ids, such as {one} and {other}; give more of it")
        }
        (None, _) => Ok(None),
    }
}

/// The named task, or the only one.
fn task(place: &Place, asked: Option<&str>) -> anyhow::Result<String> {
    let tasks =
        crate::logs::tasks(&place.dir).with_context(|| format!("cannot read the logs in {}", place.dir.display()))?;
    let known = || tasks.iter().cloned().collect::<Vec<_>>().join(", ");
    match asked {
        Some(asked) if tasks.contains(asked) => Ok(asked.to_owned()),
        _ if tasks.is_empty() => bail!("allocation {} has no logs", place.id),
        Some(asked) => bail!("allocation {} has no logs of a task {asked:?}; it has those of {}", place.id, known()),
        None if tasks.len() == 1 => Ok(known()),
        None => bail!("allocation {} has the tasks {}; name one", place.id, known()),
    }
}
