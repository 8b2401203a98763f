//! HTTP/1 connections and HTTP/2 streams, as I/O threads and workers pass them to each other.

mod http1;
mod inbox;
mod preferences;
mod stage;
mod stream;

pub(crate) use http1::Conn;
pub(crate) use inbox::{Inbox, Message, Verdict};
pub(crate) use preferences::Preferences;
pub(crate) use stage::Stage;
pub(crate) use stream::{Cancel, Rest, StreamAnswer, StreamJob, StreamNews, StreamRef, StreamWork};
