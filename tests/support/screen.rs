//! A program on a terminal of its own, and what it shows there: a small terminal that knows the sequences that programs of ours
//! send, and refuses all others.

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::world::seconds;

/// What is shown.
#[derive(Default)]
struct Shown {
    rows: usize,
    columns: usize,
    cells: Vec<char>,
    at: (usize, usize),
    other_screen: bool,
    hidden_cursor: bool,
    /// The beginning of a sequence.
    pending: Vec<u8>,
    wrong: Vec<String>,
}

pub struct Screen {
    master: Option<OwnedFd>,
    slave: OwnedFd,
    before: Termios,
    shown: Arc<(Mutex<Shown>, Condvar)>,
    pub child: Child,
}

impl Shown {
    fn clear(&mut self) {
        self.cells = vec![' '; self.rows * self.columns];
    }

    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let mut bytes = std::mem::take(&mut self.pending);
        loop {
            let Some(first) = bytes.first().copied() else { return };
            let used = if first == 0x1b { self.sequence(&bytes) } else { self.text(&bytes) };
            let Some(used) = used else { break };
            bytes.drain(..used);
        }
        self.pending = bytes;
    }

    /// `None` for one that has not come whole.
    fn sequence(&mut self, bytes: &[u8]) -> Option<usize> {
        let end = bytes.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte))? + 2;
        let text = String::from_utf8_lossy(&bytes[1..=end]).into_owned();
        let numbers = || text[1..text.len() - 1].split(';').map(|number| number.parse().unwrap_or(1));
        match (&*text, bytes[end]) {
            ("[?1049h", _) => self.other_screen = true,
            ("[?1049l", _) => self.other_screen = false,
            ("[?25l", _) => self.hidden_cursor = true,
            ("[?25h", _) => self.hidden_cursor = false,
            ("[2J", _) => self.clear(),
            (_, b'm') => {}
            (_, b'H') => {
                let numbers: Vec<usize> = numbers().collect();
                self.at = (numbers[0] - 1, numbers[1] - 1);
            }
            _ => self.wrong.push(text),
        }
        Some(end + 1)
    }

    fn text(&mut self, bytes: &[u8]) -> Option<usize> {
        let length = match bytes[0] {
            0..0x80 => 1,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        let c = std::str::from_utf8(bytes.get(..length)?).map_or('?', |text| text.chars().next().unwrap());
        let (row, column) = self.at;
        if c.is_control() {
            // What is written after the table, by others.
            if self.other_screen {
                self.wrong.push(format!("{c:?}"));
            }
        } else if row < self.rows && column < self.columns {
            self.cells[row * self.columns + column] = c;
            self.at.1 += 1;
        } else if self.other_screen {
            self.wrong.push(format!("{c:?} at {row},{column}"));
        }
        Some(length)
    }

    fn lines(&self) -> Vec<String> {
        self.cells.chunks(self.columns).map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

impl Screen {
    /// Starts a program whose controlling terminal this is. `reads` says whether anybody looks at it.
    pub fn start(program: &Command, (columns, rows): (u16, u16), reads: bool) -> Screen {
        let terminal = agentbin::container::open_terminal(None).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal.slave, size).unwrap();
        let before = tcgetattr(&terminal.slave).unwrap();
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args());
        for (key, value) in program.get_envs() {
            command.env(key, value.unwrap());
        }
        let slave = || terminal.slave.try_clone().unwrap();
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let child = command.spawn().unwrap();
        let mut shown = Shown { rows: rows.into(), columns: columns.into(), ..Shown::default() };
        shown.clear();
        let shown = Arc::new((Mutex::new(shown), Condvar::new()));
        if reads {
            let mut master = std::fs::File::from(terminal.master.try_clone().unwrap());
            let shown = Arc::clone(&shown);
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = master.read(&mut bytes) {
                    shown.0.lock().unwrap().take(&bytes[..count]);
                    shown.1.notify_all();
                }
            });
        }
        Screen { master: Some(terminal.master), slave: terminal.slave, before, shown, child }
    }

    /// Waits until what is shown is as wanted.
    pub fn wait(&self, what: &str, mut is_wanted: impl FnMut(&[String]) -> bool) -> Vec<String> {
        let deadline = Instant::now() + seconds(60);
        let mut shown = self.shown.0.lock().unwrap();
        loop {
            assert!(shown.wrong.is_empty(), "{what}: it sends {:?}", shown.wrong);
            let lines = shown.lines();
            if is_wanted(&lines) {
                return lines;
            }
            let left = deadline.checked_duration_since(Instant::now());
            let left = left.unwrap_or_else(|| panic!("{what}:\n{}", lines.join("\n")));
            shown = self.shown.1.wait_timeout(shown, left).unwrap().0;
        }
    }

    pub fn type_in(&self, keys: &str) {
        rustix::io::write(self.master.as_ref().unwrap(), keys.as_bytes()).unwrap();
    }

    pub fn resize(&self, (columns, rows): (u16, u16)) {
        let mut shown = self.shown.0.lock().unwrap();
        (shown.columns, shown.rows) = (columns.into(), rows.into());
        shown.clear();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.master.as_ref().unwrap().as_fd(), size).unwrap();
    }

    /// Whether the modes of the terminal are other than before.
    pub fn is_raw(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap();
        let of = |modes: &Termios| (modes.local_modes, modes.input_modes, modes.output_modes, modes.control_modes);
        of(&now) != of(&self.before)
    }

    /// Whether the screen that programs draw on is shown, and the cursor is hidden.
    pub fn is_taken(&self) -> (bool, bool) {
        let shown = self.shown.0.lock().unwrap();
        (shown.other_screen, shown.hidden_cursor)
    }

    /// The terminal goes.
    pub fn hang_up(&mut self) {
        self.master = None;
    }
}
