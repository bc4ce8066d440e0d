//! What a person or a pipe sees: data on stdout, everything else on stderr, colour and tables only in a terminal.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _, stderr, stdout};

/// Writes data and a newline to stdout. A reader that went away (`| head`) is no error.
pub(crate) fn data(text: impl Display) {
    let _ = writeln!(stdout().lock(), "{text}");
}

/// Says something to the person at the terminal.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(stderr().lock(), "{text}");
}

/// Reports what went wrong.
pub(crate) fn error(text: impl Display) {
    let word = paint(stderr().is_terminal(), Colour::Red, "error");
    let _ = writeln!(stderr().lock(), "{word}: {text}");
}

/// The few colours there are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    /// Bad.
    Red,
    /// Aside.
    Dim,
}

/// `text` in a colour, where `on` says that it goes to a terminal.
pub(crate) fn paint(on: bool, colour: Colour, text: &str) -> String {
    if !on || !colours() {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Red => 31,
        Colour::Dim => 2,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Whether colours are wanted at all: `NO_COLOR` (no-color.org) turns them off.
pub(crate) fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether stdout is a terminal.
pub(crate) fn terminal() -> bool {
    stdout().is_terminal()
}
