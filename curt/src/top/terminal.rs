//! The terminal's state: changed for the screen, and restored in all cases.

use std::io::{self, Write};
use std::panic;

use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// A terminal in screen mode that returns single keys; restored when dropped.
pub(super) struct Screen<W: Write> {
    out: W,
}

impl<W: Write> Screen<W> {
    /// Switches the terminal to screen mode. From now on a panic restores it before its message,
    /// which would otherwise not be visible.
    pub(super) fn take(mut out: W) -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |fault| {
            give_back(&mut io::stdout());
            before(fault);
        }));
        enable_raw_mode()?;
        // From here on it is restored when dropped.
        if let Err(error) = execute!(out, EnterAlternateScreen, Hide) {
            give_back(&mut out);
            return Err(error);
        }
        Ok(Self { out })
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        give_back(&mut self.out);
    }
}

/// Errors are ignored: the terminal may be gone.
fn give_back(out: &mut impl Write) {
    let _ = execute!(out, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xterm's sequence to leave the alternate screen.
    const LEFT: &[u8] = b"\x1b[?1049l";

    #[test]
    fn a_fault_gives_the_terminal_back() {
        let mut out = Vec::new();
        let screen = Screen { out: &mut out };
        let ended = panic::catch_unwind(panic::AssertUnwindSafe(move || {
            let _screen = screen;
            panic!("a fault of the test");
        }));
        assert!(ended.is_err());
        assert!(out.windows(LEFT.len()).any(|window| window == LEFT), "{out:?}");
    }
}
