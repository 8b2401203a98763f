//! What to listen on: from the words of the command line to addresses that can be bound.
//!
//! [`ListenSpec`] is what was asked for, [`Bind`] what to try. Nothing here binds: the engine does,
//! because it wants one socket a thread. Sockets that somebody else has bound come from
//! [`inherited`].

mod inherited;
mod resolve;
mod spec;

pub use inherited::{InheritedError, InheritedListener, inherited};
pub use resolve::{Bind, ResolveError, TcpAddress, family_missing};
pub use spec::{ADMIN_PORT_DEFAULT, Host, ListenSpec, ListenSpecError, PORT_DEFAULT, ParsedListen};
