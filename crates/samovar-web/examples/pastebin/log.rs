//! A log of requests and errors on standard error. The service manager reads it quickly; the
//! example `logging` of the engine shows a log that may be slow.

use std::io::Write;

use samovar_http::{Exchange, Incident, Observer};
use samovar_web::RequestId;

pub(crate) struct Log;

pub(crate) fn line(text: impl std::fmt::Display) {
    // If standard error is closed, there is no place for a message.
    writeln!(std::io::stderr(), "{text}").ok();
}

impl Observer for Log {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let id = exchange.extensions.get::<RequestId>();
        let (head, status, time) = (exchange.head, exchange.status, exchange.duration);
        let (peer, id) = (head.peer(), id.map_or("-", RequestId::as_str));
        line(format_args!("{peer} {id} {head:?} {status} {time:?}"));
    }

    fn incident(&self, incident: &Incident<'_>) {
        line(incident);
    }
}
