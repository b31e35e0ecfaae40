//! `agentbin top`: the tasks that run here and what they use, once or as a table that follows them. Never gives an order to a run.

mod samples;
mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::output::indented;
use super::runs::{Purpose, World, table, wait_for};
use super::signals::Signals;
use super::{TopArgs, complain, print};
use samples::Samples;
use screen::Screen;
use view::{Key, View};

use crate::spec::json::json;

pub(super) use view::By;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// The same where there are only two: how much CPU time a task uses is the difference between them.
const ONCE: Duration = Duration::from_millis(500);
/// Exit status when the terminal has gone: that of a process that SIGHUP has ended.
const GONE: i32 = 128 + libc::SIGHUP;

pub(super) fn top(args: &TopArgs) -> anyhow::Result<i32> {
    wait_for(async {
        // This starts supervisors for runs that have lost theirs, reports what is wrong, and refuses a name that nothing has.
        let world = World::look(args.data_dir.as_deref(), false).await?;
        world.tell_of_lost();
        if let Some(target) = &args.target {
            world.find(target, Purpose::Use)?;
        }
        let mut samples = Samples::new(world.data_dir.as_deref(), args.data_dir.is_some());
        samples.ask();
        samples.all().await;
        if !args.json && !args.once && io::stdout().is_terminal() {
            return live(args, samples).await;
        }
        // What the first sample began is measured until the second.
        tokio::time::sleep(ONCE).await;
        samples.ask();
        samples.all().await;
        samples.silent().for_each(|socket| complain(&format!("the run at {} does not answer", socket.display())));
        let rows = view::rows(&samples, args.target.as_deref(), args.sort);
        if args.json {
            let rows: Vec<serde_json::Value> = rows.iter().map(view::Row::json).collect();
            return print(format!("{}\n", indented(&json!({ "tasks": rows }))).as_bytes());
        }
        print(table(&view::table(&rows)).as_bytes())
    })
}

/// Shows the table until somebody ends it, or the terminal goes.
async fn live(args: &TopArgs, mut samples: Samples) -> anyhow::Result<i32> {
    let mut signals = Signals::catch_with(&[libc::SIGWINCH, libc::SIGCONT]).context("cannot catch signals")?;
    let terminal = screen::terminal().context("cannot use the terminal; with --once it prints one table")?;
    let mut screen = Screen::enter(terminal).context("cannot use the terminal")?;
    let mut view = View::new(args.sort);
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        view.show(view::rows(&samples, args.target.as_deref(), view.by()), samples.note());
        screen.draw(&mut view).context("cannot draw on the terminal")?;
        tokio::select! {
            signal = signals.next() => match signal.number() {
                libc::SIGWINCH => {}
                // Whoever stopped and continued this process has set the terminal's modes back.
                libc::SIGCONT => screen.again().context("cannot use the terminal")?,
                signal => return Ok(128 + signal),
            },
            typed = screen.typed() => {
                let Some(typed) = typed.context("cannot read from the terminal")? else { return Ok(GONE) };
                for key in view::keys(&typed) {
                    if key == Key::End {
                        return Ok(0);
                    }
                    view.press(key);
                }
            }
            _ = ticks.tick() => samples.ask(),
            // Drawn when all have answered; of one that does not, the next tick shows what the others have said.
            () = samples.all(), if samples.is_asking() => {}
        }
    }
}
