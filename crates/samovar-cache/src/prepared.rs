//! Responses that are prepared in memory.
//!
//! An I/O thread sends such a response as one piece. A worker sends the same status and header
//! fields, and generates the body while it is sent. Both are made from one [`AnswerHead`].

use std::borrow::Borrow;
use std::fmt;
use std::io;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Batch, Body, Prepared, Progress, Response, Source};

/// Maximum length in bytes of a body sent by an I/O thread, which stays in memory while the client
/// does not read. Longer bodies go through buffers whose total size is limited.
const INLINE_LEN_MAX: usize = 16 * 1024;

/// Whether an I/O thread may send this response.
pub(crate) fn may_go_inline(prepared: &Prepared) -> bool {
    prepared.body().len() <= INLINE_LEN_MAX
}

/// A header field, name and value.
pub(crate) type Field = (&'static str, &'static str);

/// Status and header fields of a response that can be sent either by an I/O thread or by a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerHead {
    pub(crate) status: Status,
    pub(crate) fields: &'static [Field],
}

impl AnswerHead {
    /// Makes the response in the form that I/O threads send.
    pub(crate) fn prepared(self, body: &[u8]) -> Prepared {
        Prepared::new(self.status, self.fields, body)
    }

    /// Makes the response in the form that workers send.
    pub(crate) fn response(self, body: Body) -> Response {
        let response = Response::new(self.status, body);
        let add = |response: Response, (name, value): &Field| response.header(name, value);
        self.fields.iter().fold(response, add)
    }
}

/// The body of a prepared response, or a range of it. It is shared, so a slow client holds no copy.
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

    /// Returns the bytes `at..end` of a prepared response's body.
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
