//! Answers in memory that are too long for an I/O thread.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | a body sent by an I/O thread | 16 KiB | who does not read makes us hold it, once a stream |

use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Body, Prepared, Progress, Source};

/// Bytes of the longest body that an I/O thread sends: longer ones go through buffers that are
/// bounded in sum.
const INLINE_LEN_MAX: usize = 16 * 1024;

/// Whether an I/O thread may send it.
pub(crate) fn may_go_inline(prepared: &Prepared) -> bool {
    prepared.body().len() <= INLINE_LEN_MAX
}

/// The body of a prepared answer, or a range of it: whoever reads it slowly holds no copy.
#[derive(Debug)]
pub(crate) struct PreparedBody {
    prepared: Arc<Prepared>,
    at: usize,
    end: usize,
}

impl PreparedBody {
    /// All of it.
    pub(crate) fn whole(prepared: Arc<Prepared>) -> Body {
        let end = prepared.body().len();
        Self::range(prepared, (0, end))
    }

    /// From `at` to `end`.
    pub(crate) fn range(prepared: Arc<Prepared>, (at, end): (usize, usize)) -> Body {
        Body::Source(Box::new(Self { prepared, at, end }))
    }
}

impl Source for PreparedBody {
    fn len(&self) -> Option<u64> {
        Some(self.end.saturating_sub(self.at) as u64)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let bytes = self.prepared.body().get(self.at..self.end);
        self.at += batch.put(bytes.unwrap_or_default());
        Ok(match self.at < self.end {
            true => Progress::More,
            false => Progress::End,
        })
    }
}
