//! Addresses to listen on, from text to socket addresses.
//!
//! [`ListenSpec`] is a configured address, [`Bind`] the resulting socket addresses to try. Nothing
//! is bound here: the engine binds one socket per I/O thread. Sockets passed by the service manager
//! come from [`inherited`].

mod inherited;
mod resolve;
mod spec;

pub(crate) use inherited::{inherited, is_within};
pub(crate) use resolve::{Bind, TcpAddress, family_missing};
pub use spec::{ADMIN_PORT_DEFAULT, Host, ListenSpec, PORT_DEFAULT, ParsedListen};
