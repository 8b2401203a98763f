//! Build logs as response bodies.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};
use samovar_store::Log;

/// The text of a log. Its length is not known, because most are compressed.
#[derive(Debug)]
pub(crate) struct LogText(pub(crate) Log);

impl Source for LogText {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        while batch.room_len() > 0 {
            match self.0.read(batch.room()) {
                Ok(0) => return Ok(Progress::End),
                Ok(len) => batch.advance(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::More)
    }
}

/// A log's file as it is.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<File>,
    pub(crate) len: u64,
}

impl Source for LogFile {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        batch.file(Arc::clone(&self.file), 0, self.len);
        Ok(Progress::End)
    }
}
