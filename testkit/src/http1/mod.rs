//! An HTTP/1.1 client: an incremental decoder of responses, and a connection that uses it.

mod connection;
mod decoder;

pub use connection::{Connection, Response, Stream, exchange};
pub use decoder::{Decoder, Event, Framing, Head, Malformed};
