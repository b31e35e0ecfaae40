//! The terminal that a table is drawn on: set up, and back as it was however this process ends, unless it is killed. Never waits
//! for a terminal that takes nothing, and never decides what is shown.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{Clear, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::Terminal;
use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::Modifier;
use ratatui::widgets::Widget;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

use crate::sys::lock::lock;
use crate::sys::watch;

/// The size of a terminal that does not know its own.
const USUAL: Size = Size { width: 80, height: 24 };
/// How long a terminal may take to accept what sets it back.
const LAST: Duration = Duration::from_millis(500);
/// Most bytes that are read at once: a key is a few.
const TYPED: usize = 256;

/// The terminal that has been set up, and its modes before.
static BEFORE: Mutex<Option<(Arc<OwnedFd>, Termios)>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The terminal of standard output, opened once more: that its reads and writes do not wait must be nobody else's concern. A
/// user may write to a terminal that he may not open, which can only be his controlling one.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn terminal() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
    open("/proc/self/fd/1").or_else(|_| open("/dev/tty")).map_err(Into::into)
}

/// A terminal that shows a table; as it was before when this is dropped, or a panic begins.
pub(super) struct Screen {
    fd: AsyncFd<Arc<OwnedFd>>,
    terminal: Terminal<Ink>,
    /// Part of a frame that the terminal has not taken yet.
    unsent: Vec<u8>,
}

impl Screen {
    /// Takes over a terminal, whose descriptor does not block. There is one at a time.
    ///
    /// # Errors
    /// When its modes cannot be read or set.
    pub(super) fn enter(fd: OwnedFd) -> io::Result<Screen> {
        let fd = Arc::new(fd);
        let before = tcgetattr(&fd)?;
        // A panic's message would go to the other screen, which is hidden a moment later.
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                next(info);
            }));
        });
        let ink = Ink { fd: Arc::clone(&fd), out: Vec::new() };
        let watched = watch::register(Arc::clone(&fd), Interest::READABLE | Interest::WRITABLE)?;
        let mut screen = Screen { fd: watched, terminal: Terminal::new(ink)?, unsent: Vec::new() };
        *lock(&BEFORE) = Some((fd, before));
        screen.set_up()?;
        Ok(screen)
    }

    fn set_up(&mut self) -> io::Result<()> {
        let Some((fd, before)) = lock(&BEFORE).clone() else { return Ok(()) };
        let mut raw = before;
        raw.make_raw();
        tcsetattr(&fd, OptionalActions::Now, &raw)?;
        queue!(self.terminal.backend_mut().out, EnterAlternateScreen, Hide)?;
        self.terminal.clear()
    }

    /// Takes the terminal over again, and draws everything anew.
    ///
    /// # Errors
    /// As [`Screen::enter`].
    pub(super) fn again(&mut self) -> io::Result<()> {
        self.unsent.clear();
        self.set_up()
    }

    /// Draws what has changed. While the terminal has not taken the frame before, nothing is drawn.
    ///
    /// # Errors
    /// None but those of the terminal's size.
    pub(super) fn draw(&mut self, widget: impl Widget) -> io::Result<()> {
        if !self.unsent.is_empty() {
            return Ok(());
        }
        self.terminal.draw(|frame| frame.render_widget(widget, frame.area()))?;
        self.unsent = std::mem::take(&mut self.terminal.backend_mut().out);
        Ok(())
    }

    /// Hands the frame to the terminal, until something is typed. `None` when the terminal has gone. The future may be dropped
    /// and the method called again.
    ///
    /// # Errors
    /// What `read(2)` and `write(2)` say.
    pub(super) async fn typed(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let wanted =
                if self.unsent.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
            let mut ready = self.fd.ready(wanted).await?;
            if ready.ready().is_writable() && !self.unsent.is_empty() {
                match rustix::io::write(ready.get_inner(), &self.unsent) {
                    Ok(count) => drop(self.unsent.drain(..count)),
                    Err(Errno::AGAIN) => ready.clear_ready_matching(Ready::WRITABLE),
                    Err(Errno::INTR) => {}
                    Err(Errno::IO) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
            if ready.ready().is_readable() {
                let mut typed = vec![0; TYPED];
                match rustix::io::read(ready.get_inner(), &mut typed) {
                    Ok(0) | Err(Errno::IO) => return Ok(None),
                    Ok(count) => {
                        typed.truncate(count);
                        return Ok(Some(typed));
                    }
                    Err(Errno::AGAIN) => ready.clear_ready_matching(Ready::READABLE),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Sets the terminal back, once. A terminal that is gone, or takes nothing for a while, is left.
fn restore() {
    let Some((fd, before)) = lock(&BEFORE).take() else { return };
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = queue!(out, SetAttribute(Attribute::Reset), LeaveAlternateScreen, Show);
    let mut left = &out[..];
    while !left.is_empty() {
        match rustix::io::write(&fd, left) {
            Ok(count) => left = &left[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LAST.subsec_nanos()) };
                let mut polled = [PollFd::new(&fd, PollFlags::OUT)];
                if !matches!(rustix::event::poll(&mut polled, Some(&timeout)), Ok(1..) | Err(Errno::INTR)) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    // A terminal that is gone has no modes.
    let _ = tcsetattr(&fd, OptionalActions::Now, &before);
}

/// What ratatui draws, as bytes for the terminal; they are written by [`Screen::typed`].
struct Ink {
    fd: Arc<OwnedFd>,
    out: Vec<u8>,
}

impl Backend for Ink {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, cells: I) -> io::Result<()> {
        let mut next = None;
        let mut style = Modifier::empty();
        for (x, y, cell) in cells {
            if next != Some((x, y)) {
                queue!(self.out, MoveTo(x, y))?;
            }
            next = Some((x + 1, y));
            if cell.modifier != style {
                style = cell.modifier;
                queue!(self.out, SetAttribute(Attribute::Reset))?;
                if style.contains(Modifier::BOLD) {
                    queue!(self.out, SetAttribute(Attribute::Bold))?;
                }
                if style.contains(Modifier::REVERSED) {
                    queue!(self.out, SetAttribute(Attribute::Reverse))?;
                }
            }
            queue!(self.out, Print(cell.symbol()))?;
        }
        queue!(self.out, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        queue!(self.out, Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        queue!(self.out, Show)
    }

    /// It is hidden, and nobody asks the terminal where it is.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        queue!(self.out, MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        use crossterm::terminal::ClearType as Which;
        let which = match region {
            ClearType::All => Which::All,
            ClearType::AfterCursor => Which::FromCursorDown,
            ClearType::BeforeCursor => Which::FromCursorUp,
            ClearType::CurrentLine => Which::CurrentLine,
            ClearType::UntilNewLine => Which::UntilNewLine,
        };
        queue!(self.out, Clear(which))
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.fd)?;
        let size = Size { width: size.ws_col, height: size.ws_row };
        Ok(if size.width == 0 || size.height == 0 { USUAL } else { size })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let columns_rows = self.size()?;
        Ok(WindowSize { columns_rows, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::open_terminal;

    /// What a terminal was sent. A worker of the kernel carries it to the master, which a read waits for before it says EAGAIN, if
    /// the slave is open.
    fn sent(terminal: &crate::container::Terminal) -> String {
        rustix::io::ioctl_fionbio(&terminal.master, true).unwrap();
        let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            match rustix::io::read(&terminal.master, &mut bytes) {
                Ok(count) => text.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => return String::from_utf8(text).unwrap(),
                Err(error) => panic!("{error}: {text:?}"),
            }
        }
    }

    #[test]
    fn p1_a_panic_sets_the_terminal_back_before_its_message() {
        let terminal = open_terminal(None).unwrap();
        let before = tcgetattr(&terminal.slave).unwrap();
        let modes =
            |fd: &OwnedFd| tcgetattr(fd).map(|modes| (modes.local_modes, modes.input_modes, modes.output_modes));
        let slave = terminal.slave.try_clone().unwrap();
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut screen = Screen::enter(slave).unwrap();
                let raw = tcgetattr(&screen.fd).unwrap();
                assert!(!raw.local_modes.contains(rustix::termios::LocalModes::ICANON));
                screen.draw("shown").unwrap();
                let typed = tokio::time::timeout(Duration::from_millis(50), screen.typed()).await;
                assert!(typed.is_err(), "nothing was typed");
                panic!("meant");
            });
        })
        .join();
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"meant"));
        assert_eq!(modes(&terminal.slave).unwrap(), (before.local_modes, before.input_modes, before.output_modes));
        let text = sent(&terminal);
        let (begin, shown) = text.split_once("shown").expect("it was drawn");
        assert!(begin.starts_with("\x1b[?1049h\x1b[?25l"), "{text:?}");
        assert!(shown.ends_with("\x1b[0m\x1b[?1049l\x1b[?25h"), "{text:?}");
        assert_eq!(text.matches("\x1b[?1049l").count(), 1, "by the hook, and not again by its drop: {text:?}");
    }
}
