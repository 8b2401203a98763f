//! Stand-ins for builds without compression, where it is never negotiated.

use crate::ws::Failure;

/// Decompressor.
#[derive(Debug)]
pub enum Inflater {}

impl Inflater {
    /// `None`: there is no compression.
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

/// Compresses nothing.
pub fn deflate(_: &[u8], _: u8, _: &mut Vec<u8>) -> bool {
    false
}
