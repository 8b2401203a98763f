//! Messages on standard error that are not errors.

use std::io::{self, IsTerminal as _, Write as _};

use samovar_text::without_logins;

/// Returns to the start of the line and erases it (ECMA-48, EL).
pub const ERASE: &str = "\r\x1b[K";

/// Prints a message on standard error, without the logins of URLs in it. On a terminal, it replaces
/// the progress line. Ignores errors, because standard error may be closed.
pub fn notice(message: &str) {
    let mut stderr = io::stderr().lock();
    let erase = match stderr.is_terminal() {
        true => ERASE,
        false => "",
    };
    let message = without_logins(message);
    writeln!(stderr, "{erase}samovar: {message}").ok();
}
