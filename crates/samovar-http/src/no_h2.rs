//! In place of `samovar_http_proto::h2`, without the feature `http2`: no connection uses HTTP/2.

use std::convert::Infallible;
use std::fmt;

use crate::http::Status;

/// Reason for ending the connection of an abusive peer: none without HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Abuse(Infallible);

impl fmt::Display for Abuse {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(crate) struct ResponseHead;

impl ResponseHead {
    pub(crate) fn read(_: Status, _: &[u8]) -> Self {
        Self
    }
}
