//! Server-sent events.
//!
//! # Source
//!
//! HTML, section 9.2 "Server-sent events".

use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Body, Response, Sender};

/// An event for a [`Sender`].
///
/// ```
/// use samovar_web::Event;
///
/// let event = Event::new("two\nlines").name("note").id("7");
/// assert_eq!(event.to_string(), "event: note\nid: 7\ndata: two\ndata: lines\n\n");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The lines before the data, each with its end.
    fields: String,
    /// The lines of the data, each with its end.
    data: String,
}

impl Event {
    /// Creates an event with data of any number of lines, which LF, CR LF or CR separate. The
    /// browser gets them separated by LF.
    pub fn new(data: impl AsRef<str>) -> Self {
        let data = data.as_ref().replace("\r\n", "\n");
        let lines = data.split(['\n', '\r']);
        Self {
            fields: String::new(),
            data: lines.map(|line| format!("data: {line}\n")).collect(),
        }
    }

    /// Creates a comment, which browsers ignore: it shows that the connection is alive.
    pub fn comment(text: impl AsRef<str>) -> Self {
        let text = one_line(text.as_ref());
        Self {
            fields: format!(": {text}\n"),
            data: String::new(),
        }
    }

    /// Sets the name, for `addEventListener(name, …)` in a browser. Without a name it is `message`.
    /// Line ends in `name` are removed.
    #[must_use]
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.add("event", name.as_ref());
        self
    }

    /// Sets the ID. A browser that connects again sends the last ID in `Last-Event-ID`. Line ends
    /// and NUL in `id` are removed.
    #[must_use]
    pub fn id(mut self, id: impl AsRef<str>) -> Self {
        self.add("id", id.as_ref());
        self
    }

    /// Sets the time after which the browser connects again, in whole milliseconds.
    #[must_use]
    pub fn retry(mut self, time: Duration) -> Self {
        self.add("retry", &time.as_millis().to_string());
        self
    }

    fn add(&mut self, field: &str, value: &str) {
        self.fields += &format!("{field}: {}\n", one_line(value));
    }
}

impl std::fmt::Display for Event {
    /// Writes the lines of the event, with the empty line that ends it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}{}", self.fields, self.data)
    }
}

impl From<Event> for Vec<u8> {
    fn from(event: Event) -> Self {
        event.to_string().into_bytes()
    }
}

impl From<&Event> for Vec<u8> {
    fn from(event: &Event) -> Self {
        event.to_string().into_bytes()
    }
}

/// Creates the two ends of a stream of events: a sender, which takes [`Event`]s from any thread,
/// and the response.
///
/// ```
/// use samovar_http::{Request, Response, Router};
/// use samovar_web::{Event, events};
///
/// fn ticks(_: &mut Request) -> Response {
///     let (sender, response) = events();
///     std::thread::spawn(move || {
///         for number in 1.. {
///             std::thread::sleep(std::time::Duration::from_secs(1));
///             if sender.send(Event::new(format!("tick {number}"))).is_err() {
///                 return; // the client has left
///             }
///         }
///     });
///     response
/// }
/// let router = Router::new().get("/ticks", ticks);
/// ```
pub fn events() -> (Sender, Response) {
    let (sender, body) = Body::channel();
    // The first bytes let the client receive the head at once. A new channel has room for them.
    sender.try_send(Event::comment("")).ok();
    let response = Response::new(Status::OK, body)
        .header("Content-Type", "text/event-stream")
        .header("Cache-Control", "no-store");
    (sender, response)
}

fn one_line(text: &str) -> String {
    let is_kept = |c: &char| !matches!(c, '\r' | '\n' | '\0');
    text.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(event: &Event, expected: &str) {
        assert_eq!(event.to_string(), expected);
    }

    #[test]
    fn every_line_of_the_data_is_a_line_of_the_event() {
        check(&Event::new(""), "data: \n\n");
        check(&Event::new("a"), "data: a\n\n");
        check(
            &Event::new("a\nb\r\nc\rd"),
            "data: a\ndata: b\ndata: c\ndata: d\n\n",
        );
        check(
            &Event::new("a\n\nb\n"),
            "data: a\ndata: \ndata: b\ndata: \n\n",
        );
        check(&Event::new("a\n\rb"), "data: a\ndata: \ndata: b\n\n");
        check(&Event::new(" a: b"), "data:  a: b\n\n");
    }

    #[test]
    fn a_field_cannot_end_an_event() {
        let event = Event::new("x").name("a\n\ndata: y").id("1\r\0\n2");
        check(&event, "event: adata: y\nid: 12\ndata: x\n\n");
        check(&Event::comment("a\n\nb"), ": ab\n\n");
        let event = Event::new("x").retry(Duration::from_millis(1500));
        check(&event, "retry: 1500\ndata: x\n\n");
    }
}
