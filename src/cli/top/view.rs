//! The table of `agentbin top`: its rows, their order, what a key does, and how it is drawn. Never asks anybody, and never touches
//! the terminal.

use std::cmp::Ordering;
use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::Widget;
use serde_json::Value as Json;

use super::super::runs::{Purpose, age, mib, row, short};
use super::samples::Samples;
use crate::alloc::control::seconds_since;
use crate::spec::json::json;
use crate::spec::{Order as _, escaped};

/// The heads of the columns.
const HEADS: [&str; 12] =
    ["JOB", "GROUP", "TASK", "DRIVER", "ALLOC", "STATE", "CPU", "RSS", "LIMIT", "PROCS", "UPTIME", "RESTARTS"];
/// From this column on there are numbers, which end below each other.
const NUMBERS: usize = 6;
/// The columns with names, which are cut first where the terminal is narrow, and the width that is left of them.
const NAMES: usize = 3;
const NARROW: usize = 8;
/// Spaces between two columns.
const GAP: usize = 2;
/// Lines above the first row: what there is in all, what is wrong, the heads.
const ABOVE: u16 = 3;

/// What the rows are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in super::super) enum By {
    /// CPU time, the most first
    Cpu,
    /// Memory (RSS), the most first
    Memory,
}

/// A task.
pub(super) struct Row {
    alloc: String,
    job: String,
    group: String,
    index: u32,
    task: String,
    driver: String,
    state: &'static str,
    cpu: Option<f64>,
    rss: Option<u64>,
    /// 0 for none.
    limit: Option<u64>,
    processes: Option<usize>,
    started: Option<String>,
    restarts: u64,
}

/// The tasks in their order; with a word only those that it names.
pub(super) fn rows(samples: &Samples, word: Option<&str>, by: By) -> Vec<Row> {
    let world = samples.world();
    let (found, only) = match word {
        // One that named something before and no longer does names nothing.
        Some(word) => world.find(word, Purpose::Use).unwrap_or_default(),
        None => (world.allocs.iter().collect(), None),
    };
    let mut rows = Vec::new();
    for found in found {
        let view = &found.view;
        for task in view.tasks.iter().filter(|task| only.as_ref().is_none_or(|only| *only == task.name)) {
            let runs = task.state == "running";
            let state = match &*task.state {
                _ if samples.is_silent(found) => "no answer",
                _ if task.failed => "failed",
                "running" if view.stopping => "stopping",
                "running" => "running",
                "dead" => "dead",
                _ => "pending",
            };
            let used = samples.of(&view.id, &task.name).filter(|_| runs);
            rows.push(Row {
                alloc: view.id.clone(),
                job: view.job.clone(),
                group: view.group.clone(),
                index: view.index,
                task: task.name.clone(),
                driver: task.driver.clone(),
                state,
                cpu: used.map(|used| used.total.cpu_percent),
                rss: used.map(|used| used.total.memory_rss),
                limit: used.map(|used| used.memory_limit),
                processes: used.map(|used| used.by_pid.len()),
                started: task.started_at.clone().filter(|_| runs),
                restarts: task.restarts,
            });
        }
    }
    rows.order_by(|one, other| by.compare(one, other));
    rows
}

impl By {
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let most = match self {
            By::Cpu => other.cpu.unwrap_or(-1.0).total_cmp(&one.cpu.unwrap_or(-1.0)),
            By::Memory => other.rss.cmp(&one.rss),
        };
        let name = |row: &Row| (row.job.clone(), row.group.clone(), row.index, row.task.clone(), row.alloc.clone());
        most.then_with(|| name(one).cmp(&name(other)))
    }

    const fn name(self) -> &'static str {
        match self {
            By::Cpu => "CPU",
            By::Memory => "memory",
        }
    }
}

impl Row {
    /// What is said of it on a terminal: text of others is escaped.
    fn cells(&self) -> Vec<String> {
        let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let group = format!("{}[{}]", self.group, self.index);
        row(&[
            &self.job,
            &group,
            &self.task,
            &self.driver,
            short(&self.alloc),
            self.state,
            &or(self.cpu.map(|percent| format!("{percent:.1}%"))),
            &or(self.rss.map(mib)),
            &or(self.limit.map(mib)),
            &or(self.processes.map(|count| count.to_string())),
            &or(self.started.as_deref().map(age)),
            &self.restarts.to_string(),
        ])
    }

    pub(super) fn json(&self) -> Json {
        json!({
            "alloc_id": self.alloc,
            "job": self.job,
            "group": self.group,
            "index": self.index,
            "task": self.task,
            "driver": self.driver,
            "state": self.state,
            "cpu_percent": self.cpu,
            "memory_rss": self.rss,
            "memory_limit": self.limit.filter(|limit| *limit > 0),
            "processes": self.processes,
            "started_at": self.started,
            "uptime_seconds": self.started.as_deref().and_then(seconds_since),
            "restarts": self.restarts,
        })
    }
}

/// The table with its heads, as text.
pub(super) fn table(rows: &[Row]) -> Vec<Vec<String>> {
    std::iter::once(HEADS.map(str::to_owned).to_vec()).chain(rows.iter().map(Row::cells)).collect()
}

/// What somebody wants who presses a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    End,
    By(By),
    /// So many rows down.
    Scroll(isize),
    /// So many screens down.
    Page(isize),
}

/// The keys in what was read from the terminal at once. A sequence that means nothing here is skipped as a whole.
pub(super) fn keys(mut typed: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = typed {
        typed = rest;
        keys.extend(match first {
            // Ctrl-C, which is not a signal on a terminal in raw mode.
            b'q' | b'Q' | 0x03 => Some(Key::End),
            b'c' | b'C' | b'P' => Some(Key::By(By::Cpu)),
            b'm' | b'M' => Some(Key::By(By::Memory)),
            b'j' => Some(Key::Scroll(1)),
            b'k' => Some(Key::Scroll(-1)),
            b' ' => Some(Key::Page(1)),
            0x1b => match rest {
                [b'[' | b'O', sequence @ ..] => {
                    let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                    let (sequence, rest) = sequence.split_at(end.map_or(sequence.len(), |end| end + 1));
                    typed = rest;
                    match sequence {
                        b"A" => Some(Key::Scroll(-1)),
                        b"B" => Some(Key::Scroll(1)),
                        b"5~" => Some(Key::Page(-1)),
                        b"6~" => Some(Key::Page(1)),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        });
    }
    keys
}

/// What is shown at the moment.
pub(super) struct View {
    by: By,
    rows: Vec<Row>,
    note: String,
    /// The row that stands first.
    first: usize,
    /// How many have room.
    room: usize,
}

impl View {
    pub(super) fn new(by: By) -> View {
        View { by, rows: Vec::new(), note: String::new(), first: 0, room: 1 }
    }

    pub(super) fn by(&self) -> By {
        self.by
    }

    pub(super) fn show(&mut self, rows: Vec<Row>, note: &str) {
        self.rows = rows;
        note.clone_into(&mut self.note);
    }

    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::End => {}
            Key::By(by) => (self.by, self.first) = (by, 0),
            Key::Scroll(by) => self.first = self.first.saturating_add_signed(by),
            Key::Page(by) => {
                self.first = self.first.saturating_add_signed(by.saturating_mul(self.room.max(1).cast_signed()));
            }
        }
    }

    fn in_all(&self) -> String {
        let running = self.rows.iter().filter(|row| row.cpu.is_some()).count();
        let cpu: f64 = self.rows.iter().filter_map(|row| row.cpu).sum();
        let rss: u64 = self.rows.iter().filter_map(|row| row.rss).sum();
        let tasks = self.rows.len();
        format!("{tasks} tasks, {running} of them running; CPU {cpu:.1}%, RSS {}", mib(rss))
    }
}

impl Widget for &mut View {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let (width, bold) = (usize::from(area.width), Style::new().add_modifier(Modifier::BOLD));
        // Below the rows there is a line that says what the keys do.
        self.room = usize::from(area.height.saturating_sub(ABOVE + 1));
        self.first = self.first.min(self.rows.len().saturating_sub(self.room.max(1)));
        let mut line = |number: u16, text: &str, style: Style| {
            if number < area.height {
                buffer.set_stringn(area.x, area.y + number, text, width, style);
            }
        };
        line(0, &self.in_all(), bold);
        line(1, &escaped(&self.note), Style::new());
        let texts = table(&self.rows);
        let widths = widths(&texts, width);
        let mut shown = texts.iter().enumerate().filter(|(number, _)| *number == 0 || *number > self.first);
        for (number, (which, cells)) in (ABOVE - 1..area.height.saturating_sub(1)).zip(&mut shown) {
            let style = if which == 0 { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            line(number, &laid_out(cells, &widths, width), style);
        }
        let keys = format!("by {}   c CPU   m memory   arrows scroll   q end", self.by.name());
        line(area.height.saturating_sub(1), &keys, Style::new());
    }
}

/// The widths of the columns: what the widest cell needs, less for names where the line would be too long.
fn widths(texts: &[Vec<String>], most: usize) -> [usize; HEADS.len()] {
    let mut widths = [0; HEADS.len()];
    for cells in texts {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut over = (widths.iter().sum::<usize>() + GAP * (HEADS.len() - 1)).saturating_sub(most);
    while over > 0 {
        let Some(widest) = widths[..NAMES].iter_mut().max().filter(|width| **width > NARROW) else { break };
        *widest -= 1;
        over -= 1;
    }
    widths
}

/// A line of the table, as long as the terminal is wide.
fn laid_out(cells: &[String], widths: &[usize], most: usize) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell: String = cell.chars().take(*width).collect();
        // Writing to memory does not fail.
        let _ = if column < NUMBERS { write!(line, "{cell:<width$}") } else { write!(line, "{cell:>width$}") };
        line.extend([' '; GAP]);
    }
    let width = line.chars().count();
    line.extend(std::iter::repeat_n(' ', most.saturating_sub(width)));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_row(job: &str, cpu: Option<f64>, rss: Option<u64>) -> Row {
        Row {
            alloc: "0123456789".to_owned(),
            job: job.to_owned(),
            group: "g".to_owned(),
            index: 0,
            task: "t".to_owned(),
            driver: "exec".to_owned(),
            state: "running",
            cpu,
            rss,
            limit: Some(0),
            processes: Some(1),
            started: None,
            restarts: 2,
        }
    }

    fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        view.render(area, &mut buffer);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn p1_keys_are_read_one_by_one_and_unknown_sequences_skipped() {
        assert_eq!(keys(b"xq\x03"), [Key::End, Key::End]);
        assert_eq!(keys(b"cm"), [Key::By(By::Cpu), Key::By(By::Memory)]);
        assert_eq!(
            keys(b"\x1b[A\x1b[B\x1bOB\x1b[5~\x1b[6~"),
            [Key::Scroll(-1), Key::Scroll(1), Key::Scroll(1), Key::Page(-1), Key::Page(1)]
        );
        assert_eq!(keys(b"\x1b[1;5Cq"), [Key::End], "no q is part of a sequence");
        assert_eq!(keys(b"\x1b[<35;1;1Mc"), [Key::By(By::Cpu)], "nor an M of a mouse");
        assert_eq!(keys(b"\x1b[1;5"), []);
    }

    #[test]
    fn p1_rows_are_ordered_by_use_then_by_name() {
        let mut rows = vec![a_row("b", None, None), a_row("c", Some(1.0), Some(9)), a_row("a", Some(2.0), Some(3))];
        rows.push(a_row("a", None, None));
        let order = |rows: &mut Vec<Row>, by: By| {
            rows.order_by(|one, other| by.compare(one, other));
            rows.iter().map(|row| row.job.clone()).collect::<String>()
        };
        assert_eq!(order(&mut rows, By::Cpu), "acab");
        assert_eq!(order(&mut rows, By::Memory), "caab");
    }

    #[test]
    fn p1_the_table_fits_any_terminal_and_shows_text_of_others_escaped() {
        let mut view = View::new(By::Cpu);
        let long = "a-job-with-a-very-long-name-\u{1b}[2J".repeat(2);
        view.show(vec![a_row(&long, Some(12.34), Some(3 << 20)), a_row("z", None, None)], "wrong\u{1b}[H");
        for (width, height) in [(0, 0), (1, 1), (5, 2), (20, 4), (80, 5), (200, 50), (u16::MAX / 300, 300)] {
            let lines = drawn(&mut view, width, height);
            assert!(!lines.iter().any(|line| line.contains('\u{1b}')), "{width}x{height}: {lines:?}");
        }
        let wide = drawn(&mut view, 200, 10);
        assert!(wide[0].starts_with("2 tasks, 1 of them running; CPU 12.3%, RSS 3.0 MiB"), "{wide:?}");
        assert_eq!(wide[1], "wrong\\x1b[H");
        assert!(wide[2].starts_with("JOB ") && wide[2].ends_with("RESTARTS"), "{wide:?}");
        assert!(wide[3].contains("\\x1b[2J") && wide[3].contains("g[0]") && wide[3].contains("01234567 "), "{wide:?}");
        assert!(wide[3].contains("12.3%") && wide[4].starts_with("z "), "{wide:?}");
        assert!(wide[9].contains("q end"), "{wide:?}");
        let narrow = drawn(&mut view, 110, 10);
        assert!(
            narrow[3].starts_with("a-job-wi") && narrow[3].ends_with('2'),
            "the name is cut, the rest stays: {narrow:?}"
        );
    }

    #[test]
    fn p1_scrolling_ends_with_the_last_row() {
        let mut view = View::new(By::Cpu);
        let rows = || (0..20).map(|n| a_row(&format!("j{n:02}"), None, None)).collect::<Vec<_>>();
        view.show(rows(), "");
        assert!(drawn(&mut view, 100, 9)[3].starts_with("j00"));
        view.press(Key::Scroll(1));
        assert!(drawn(&mut view, 100, 9)[3].starts_with("j01"));
        view.press(Key::Page(1));
        assert!(drawn(&mut view, 100, 9)[3].starts_with("j06"), "five rows have room");
        view.press(Key::Page(9));
        let lines = drawn(&mut view, 100, 9);
        assert!(lines[3].starts_with("j15") && lines[7].starts_with("j19"), "{lines:?}");
        view.press(Key::Page(-9));
        assert!(drawn(&mut view, 100, 9)[3].starts_with("j00"));
        view.show(Vec::new(), "");
        assert!(drawn(&mut view, 100, 9)[0].starts_with("0 tasks"));
    }
}
