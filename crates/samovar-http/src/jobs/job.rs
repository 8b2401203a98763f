//! Jobs of the workers.

use std::fmt;

use crate::client::{Claimant, Peer};
use crate::conn::{Conn, StreamJob, StreamWork};
use crate::lane::Lane;
use crate::request::Request;
use crate::ws::Socket;

/// A job for a worker. Jobs may block.
#[derive(Debug)]
pub(crate) enum Job {
    /// Call the handler for the request of this connection.
    Handle(Box<Conn>, Box<Request>),
    /// Continue to send the response in progress.
    Pump(Box<Conn>),
    /// Drop the rest of an aborted response: this closes files, which may block.
    Discard(Box<dyn fmt::Debug + Send>),
    /// Continue the TLS handshake.
    Handshake(Box<Conn>),
    /// Pass a WebSocket's events to its handler.
    Events(Socket),
    /// Do work for one stream of an HTTP/2 connection. The connection stays on its I/O thread.
    Stream(Box<StreamJob>),
}

impl Job {
    /// Returns whether the job starts new work, which a full queue refuses.
    pub(crate) fn is_request(&self) -> bool {
        match self {
            Self::Handle(..) => true,
            Self::Handshake(_) => true,
            Self::Stream(job) => matches!(job.work, StreamWork::Handle(_)),
            Self::Pump(_) | Self::Discard(_) | Self::Events(_) => false,
        }
    }

    /// Returns the request of a job that calls a handler; `None` for any other job.
    pub(crate) fn into_request(self) -> Option<Box<Request>> {
        match self {
            Self::Handle(_, request) => Some(request),
            Self::Stream(job) => match job.work {
                StreamWork::Handle(request) => Some(request),
                StreamWork::Fulfil(..) | StreamWork::Pull(_) => None,
            },
            _ => None,
        }
    }

    /// Returns the lane in which the job runs.
    pub(crate) fn lane(&self) -> Lane {
        match self {
            Self::Handle(_, request) => request.lane,
            Self::Pump(conn) => conn.answer.lane,
            Self::Handshake(_) => Lane::Handshake,
            Self::Events(_) => Lane::Prompt,
            Self::Discard(_) => Lane::Slow,
            Self::Stream(job) => job.stream.lane,
        }
    }

    /// Returns the client of the request that the job handles; `None` for any other job.
    pub(crate) fn peer(&self) -> Option<Peer> {
        match self {
            Self::Handle(conn, _) => Some(conn.peer),
            Self::Stream(job) => match &job.work {
                StreamWork::Handle(request) => Some(request.head().peer()),
                StreamWork::Fulfil(..) | StreamWork::Pull(_) => None,
            },
            _ => None,
        }
    }

    /// Returns the client for whom the job computes.
    pub(crate) fn claimant(&self) -> Claimant {
        let named = match self {
            Self::Handle(_, request) => request.claimant,
            Self::Stream(job) => match &job.work {
                StreamWork::Handle(request) => request.claimant,
                StreamWork::Fulfil(..) | StreamWork::Pull(_) => None,
            },
            _ => None,
        };
        named.unwrap_or_else(|| Claimant::at(self.peer()))
    }

    /// Returns whether the job calls a handler that may wait for the rest of a request body.
    pub(crate) fn is_streamed(&self) -> bool {
        match self {
            Self::Handle(conn, _) => conn.proto.has_body(),
            Self::Stream(job) => {
                matches!(&job.work, StreamWork::Handle(request) if request.is_streamed())
            }
            _ => false,
        }
    }
}
