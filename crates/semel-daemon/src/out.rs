//! What a person or a pipe sees: data on stdout, everything else on stderr, colour and tables only in a terminal.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal as _, Write as _, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;

/// Whether data was lost on its way to stdout.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes data and a newline to stdout. A reader that went away (`| head`) is no error; any other failure is told, and
/// [`end`] makes it the command's.
pub(crate) fn data(text: impl Display) {
    let mut stdout = stdout().lock();
    wrote(writeln!(stdout, "{text}").and_then(|()| stdout.flush()));
}

/// Looks at how writing to stdout went.
pub(crate) fn wrote(result: std::io::Result<()>) {
    match result {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            if !LOST.swap(true, Ordering::Relaxed) {
                error(format_args!("stdout cannot be written: {cause}"));
            }
        }
        Ok(()) | Err(_) => {}
    }
}

/// The command's end: a success whose data was lost is none.
pub(crate) fn end(exit: Exit) -> Exit {
    match exit {
        Exit::Ok if LOST.load(Ordering::Relaxed) => Exit::Failed,
        other => other,
    }
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
