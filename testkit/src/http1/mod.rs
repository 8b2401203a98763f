//! HTTP/1.1 from the client's side.

mod connection;
mod decoder;

pub use connection::{Connection, Response, Stream, exchange};
pub use decoder::{Decoder, Event, Framing, Head, Malformed};
