//! In place of `h2/`, without the feature `http2`: no connection uses HTTP/2.

use std::convert::Infallible;
use std::time::Instant;

use super::context::{Context, Stay};
use crate::client::Peer;
use crate::conn::{Conn, StreamNews};
use crate::net::key::Key;
use crate::observer::End;
use crate::service::Service;
use crate::sys::Edges;

/// As in `h2/`; there are no values.
#[derive(Debug)]
pub(crate) struct H2Conn {
    pub(crate) peer: Peer,
    pub(crate) key: Key,
    pub(crate) session: Session,
    pub(crate) since: Instant,
    pub(crate) is_scheduled: bool,
}

#[derive(Debug)]
pub(crate) struct Session(Infallible);

impl Session {
    pub(crate) fn stream_count(&self) -> usize {
        match self.0 {}
    }
}

impl H2Conn {
    pub(crate) fn note(&mut self, _: Edges) {
        match self.session.0 {}
    }
}

/// Refuses the connection.
pub(super) fn start<S: Service>(
    _: &mut Context<S>,
    conn: Box<Conn>,
) -> Result<(Box<H2Conn>, Stay), Box<Conn>> {
    Err(conn)
}

pub(super) fn cut_off<S: Service>(_: &mut Context<S>, conn: &mut H2Conn) {
    match conn.session.0 {}
}

pub(super) fn fail<S: Service>(_: &mut Context<S>, conn: &mut H2Conn, _: End) {
    match conn.session.0 {}
}

pub(super) fn step<S: Service>(_: &mut Context<S>, conn: &mut H2Conn, _: Edges) -> Stay {
    match conn.session.0 {}
}

pub(super) mod answers {
    use super::{Context, H2Conn, Service, StreamNews};

    pub(in crate::io) fn on_news<S: Service>(
        _: &mut Context<S>,
        conn: &mut H2Conn,
        _: u32,
        _: StreamNews,
    ) {
        match conn.session.0 {}
    }

    pub(in crate::io) fn wake_stream<S: Service>(_: &mut Context<S>, conn: &mut H2Conn, _: u32) {
        match conn.session.0 {}
    }
}

pub(super) mod clock {
    use super::{Context, H2Conn, Service, Stay};

    pub(in crate::io) fn check<S: Service>(_: &mut Context<S>, conn: &mut H2Conn) -> Stay {
        match conn.session.0 {}
    }
}
