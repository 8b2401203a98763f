//! Signals that end a server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Catches SIGTERM and SIGINT from now on. The returned function waits for the first of them, for
/// [`Router::serve_until`](crate::Router::serve_until). The next one then ends the process at once,
/// so Ctrl-C twice does not wait for a drain.
///
/// # Errors
///
/// If the signals cannot be caught.
pub fn stop_signal() -> io::Result<impl FnOnce() + Send + 'static> {
    let is_stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal only sets the flag.
        flag::register_conditional_default(signal, Arc::clone(&is_stopping))?;
        flag::register(signal, Arc::clone(&is_stopping))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    Ok(move || {
        signals.forever().next();
    })
}
