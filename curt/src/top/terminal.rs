//! The terminal's state: taken for the screen, given back however that ends.

use std::io::{self, Write};
use std::panic;

use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// A terminal that shows a screen of ours and hands over single keys; dropped, it is as it was.
pub(super) struct Screen<W: Write> {
    out: W,
}

impl<W: Write> Screen<W> {
    /// Takes the terminal. From now on a fault of ours gives it back before it is told, for it
    /// would be told where nobody sees it.
    pub(super) fn take(mut out: W) -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |fault| {
            give_back(&mut io::stdout());
            before(fault);
        }));
        enable_raw_mode()?;
        // Dropped from here on, it is given back.
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

/// Nothing can be done about a terminal that is gone.
fn give_back(out: &mut impl Write) {
    let _ = execute!(out, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves the alternate screen, in the words of xterm.
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
