//! Addresses to listen on, from text to socket addresses.
//!
//! [`ListenSpec`] is an address as configured, [`Bind`] the socket addresses to try. Nothing here
//! binds: the engine does, with one socket for each thread. Sockets of the service manager come
//! from [`inherited`].

mod inherited;
mod resolve;
mod spec;

pub use inherited::{InheritedError, InheritedListener, inherited};
pub use resolve::{Bind, ResolveError, TcpAddress, family_missing};
pub use spec::{ADMIN_PORT_DEFAULT, Host, ListenSpec, ListenSpecError, PORT_DEFAULT, ParsedListen};
