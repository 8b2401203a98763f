//! HTTP/1.1 client.

mod connection;
mod decoder;

pub use connection::{Connection, Response, Stream, exchange};
pub use decoder::{Decoder, Event, Framing, Head, Malformed};
