//! Stands in where compression is not built in; then it is not negotiated, and none of these exist.

use crate::ws::Failure;

/// Reads compressed messages.
#[derive(Debug)]
pub enum Inflater {}

impl Inflater {
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

/// Writes compressed messages.
#[derive(Debug)]
pub enum Deflater {}

impl Deflater {
    /// Compresses a message.
    pub fn deflate(&mut self, _: &[u8], _: &mut Vec<u8>) -> bool {
        match *self {}
    }

    /// Whether a message that was compressed alone may be sent here.
    pub fn takes_alone(&self) -> bool {
        match *self {}
    }

    /// It was sent.
    pub fn sent_alone(&mut self, _: &[u8]) {
        match *self {}
    }
}

/// Compresses nothing.
pub fn deflate_alone(_: &[u8], _: &mut Vec<u8>) -> bool {
    false
}
