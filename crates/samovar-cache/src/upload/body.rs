//! Reads the body of a PUT and removes its `Content-Encoding`.

use std::cell::{Cell, RefCell};
use std::io::{self, Read as _};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{BodyReader, Head, Response};
use samovar_storage::Wait;
use samovar_storage::verify::Encoding;

use super::refused;
use crate::route::upload::Resource;

/// The body of a request. The code that reads it and the code that waits for a slot use it in turn.
#[derive(Debug)]
pub(super) struct SharedBody<'a> {
    reader: RefCell<BodyReader<'a>>,
    /// Whether the client was told to send the body.
    is_requested: Cell<bool>,
}

impl<'a> SharedBody<'a> {
    pub(super) fn new(body: BodyReader<'a>) -> Self {
        Self {
            reader: RefCell::new(body),
            is_requested: Cell::new(false),
        }
    }

    /// Discards the rest of a body whose request failed after its first byte was read. Clients that
    /// read no response before they have sent the whole body, as `samovar push`, would otherwise
    /// report a reset connection. `len_max`: maximum number of bytes to discard.
    pub(super) fn finish<T, E>(&self, outcome: Result<T, E>, len_max: u64) -> Result<T, E> {
        if outcome.is_err() && self.is_requested.get() {
            // Ignore errors: the response is the same whether or not the rest arrives.
            io::copy(&mut self.take(len_max), &mut io::sink()).ok();
        }
        outcome
    }
}

impl io::Read for &SharedBody<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_requested.set(true);
        self.reader.borrow_mut().read(buffer)
    }
}

impl Wait for SharedBody<'_> {
    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        self.reader.borrow().wait(is_ready)
    }
}

/// Returns the `Content-Encoding` of a PUT body. Returns `None` if the body is not encoded, and a
/// refusal if the server cannot decode it. Nix 2.32 and later encode metadata if
/// `narinfo-compression`, `ls-compression` or `log-compression` is set.
pub(super) fn encoding_of(
    head: Head<'_>,
    resource: Option<Resource<'_>>,
) -> Result<Option<Encoding>, Response> {
    let Some(name) = head.header("Content-Encoding") else {
        return Ok(None);
    };
    if matches!(resource, Some(Resource::Nar(_))) {
        return Err(refused(
            Status::UNSUPPORTED_MEDIA_TYPE,
            "a NAR cannot be uploaded with a Content-Encoding: compress the file, and state its \
             compression in the suffix of the URL and in the narinfo",
        ));
    }
    let name = String::from_utf8_lossy(name);
    match name.trim() {
        // Nix sends `none` if its setting is `none`.
        "identity" | "none" => Ok(None),
        name => match Encoding::from_name(name) {
            Some(encoding) => Ok(Some(encoding)),
            None => Err(refused(
                Status::UNSUPPORTED_MEDIA_TYPE,
                &format!(
                    "the Content-Encoding {name:?} is not supported: set narinfo-compression, \
                     ls-compression and log-compression to zstd, br, gzip or xz, or leave them out"
                ),
            )),
        },
    }
}
