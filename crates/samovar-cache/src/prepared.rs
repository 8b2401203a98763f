//! Answers that are prepared in memory.
//!
//! An I/O thread sends such an answer as one piece; a worker sends the same head with a body that
//! is pulled. Both heads are made of one [`AnswerHead`].
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | a body sent by an I/O thread | 16 KiB | a client that does not read keeps it in memory |

use std::borrow::Borrow;
use std::fmt;
use std::io;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Batch, Body, Prepared, Progress, Response, Source};

/// Bytes of the longest body that an I/O thread sends: longer ones go through buffers that are
/// bounded in sum.
const INLINE_LEN_MAX: usize = 16 * 1024;

/// Whether an I/O thread may send this answer.
pub(crate) fn may_go_inline(prepared: &Prepared) -> bool {
    prepared.body().len() <= INLINE_LEN_MAX
}

/// A header field, name and value.
pub(crate) type Field = (&'static str, &'static str);

/// Status and header fields of an answer that is sent both prepared and as a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerHead {
    pub(crate) status: Status,
    pub(crate) fields: &'static [Field],
}

impl AnswerHead {
    /// For I/O threads.
    pub(crate) fn prepared(self, body: &[u8]) -> Prepared {
        Prepared::new(self.status, self.fields, body)
    }

    /// For workers.
    pub(crate) fn response(self, body: Body) -> Response {
        let response = Response::new(self.status, body);
        let add = |response: Response, (name, value): &Field| response.header(name, value);
        self.fields.iter().fold(response, add)
    }
}

/// The body of a prepared answer, or a range of it. A slow reader holds no copy.
#[derive(Debug)]
pub(crate) struct PreparedBody<P> {
    of: Arc<P>,
    at: usize,
    end: usize,
}

impl<P> PreparedBody<P>
where
    P: Borrow<Prepared> + fmt::Debug + Send + Sync + 'static,
{
    pub(crate) fn whole(of: Arc<P>) -> Body {
        let end = (*of).borrow().body().len();
        Self::range(of, (0, end))
    }

    /// Bytes `at..end`.
    pub(crate) fn range(of: Arc<P>, (at, end): (usize, usize)) -> Body {
        Body::Source(Box::new(Self { of, at, end }))
    }
}

impl<P> Source for PreparedBody<P>
where
    P: Borrow<Prepared> + fmt::Debug + Send + Sync + 'static,
{
    fn len(&self) -> Option<u64> {
        Some(self.end.saturating_sub(self.at) as u64)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let bytes = (*self.of).borrow().body().get(self.at..self.end);
        self.at += batch.put(bytes.unwrap_or_default());
        Ok(if self.at < self.end {
            Progress::More
        } else {
            Progress::End
        })
    }
}
