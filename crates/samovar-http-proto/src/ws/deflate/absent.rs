//! Uninhabited stand-ins for builds without compression, where it is never negotiated.

use crate::ws::Failure;

/// Decompressor.
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

/// Compressor.
#[derive(Debug)]
pub enum Deflater {}

impl Deflater {
    /// Compresses a message.
    pub fn deflate(&mut self, _: &[u8], _: &mut Vec<u8>) -> bool {
        match *self {}
    }

    /// Whether an independently compressed message may be sent.
    pub fn takes_alone(&self) -> bool {
        match *self {}
    }

    /// Records an independently compressed message as sent.
    pub fn sent_alone(&mut self, _: &[u8]) {
        match *self {}
    }
}

/// Compresses nothing.
pub fn deflate_alone(_: &[u8], _: &mut Vec<u8>) -> bool {
    false
}
