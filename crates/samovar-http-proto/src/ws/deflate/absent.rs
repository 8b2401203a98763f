//! Stubs for builds without compression, in which permessage-deflate is never negotiated.

use crate::ws::Failure;

/// Uninhabited decompressor type.
#[derive(Debug)]
pub enum Inflater {}

impl Inflater {
    /// Returns `None`: this build has no compression.
    pub fn new() -> Option<Self> {
        None
    }

    pub(crate) fn begin(&mut self) {
        match *self {}
    }

    pub(crate) fn feed(&mut self, _: &[u8], _: &mut Vec<u8>, _: usize) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn end(&mut self, _: &mut Vec<u8>, _: usize) -> Result<(), Failure> {
        match *self {}
    }
}

/// Returns `false`: the message must be sent uncompressed.
pub fn deflate(_: &[u8], _: u8, _: &mut Vec<u8>) -> bool {
    false
}
