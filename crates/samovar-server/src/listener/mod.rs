//! Addresses to listen on, from text to socket addresses.
//!
//! [`ListenSpec`] is a configured address, which `resolve.rs` turns into socket addresses.
//! `inherited.rs` takes sockets from the service manager. Nothing is bound here: the engine binds
//! one socket per I/O thread.

mod inherited;
mod resolve;
mod spec;

pub(crate) use inherited::{inherited, is_within};
pub(crate) use resolve::{Bind, TcpAddress, family_missing};
pub use spec::{ADMIN_PORT_DEFAULT, Host, ListenSpec, PORT_DEFAULT, ParsedListen};
