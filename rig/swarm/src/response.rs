//! Incremental decoder of responses.

use testkit::http1::{Decoder, Event, Framing, Malformed};

/// Maximum length of a body retained for a fleet.
const BODY_LEN_MAX: usize = 1 << 20;

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) status: u16,
    pub(crate) body_len: u64,
    /// Whether the server closes the connection.
    pub(crate) closes: bool,
}

/// Decoder of one response, reusable after [`Response::clear`].
#[derive(Debug, Default)]
pub(crate) struct Response {
    decoder: Decoder,
    pub(crate) body: Vec<u8>,
    body_len: u64,
}

impl Response {
    /// Decodes newly read bytes. Fails if the response is delimited by the end of the connection,
    /// or if bytes follow the response, because requests are not pipelined.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        keeps_body: bool,
    ) -> Result<Option<Complete>, Malformed> {
        while let Some(event) = self.decoder.next(&mut bytes)? {
            let head = self.decoder.head();
            match event {
                Event::Head if head.framing == Framing::Close || head.status < 200 => {
                    return Err(Malformed);
                }
                Event::Head => {}
                Event::Content(content) => {
                    self.body_len += content.len() as u64;
                    if keeps_body && self.body.len() + content.len() <= BODY_LEN_MAX {
                        self.body.extend_from_slice(content);
                    }
                }
                Event::End if bytes.is_empty() => {
                    return Ok(Some(Complete {
                        status: head.status,
                        body_len: self.body_len,
                        closes: !head.keeps_alive,
                    }));
                }
                Event::End => return Err(Malformed),
            }
        }
        Ok(None)
    }

    pub(crate) fn clear(&mut self) {
        self.decoder.clear();
        self.body.clear();
        self.body_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_the_same_wherever_it_is_split() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
                      3\r\nabc\r\n0\r\n\r\n";
        let expected = Complete {
            status: 200,
            body_len: 3,
            closes: true,
        };
        for split in 0..bytes.len() {
            let mut response = Response::default();
            let (first, second) = bytes.split_at(split);
            assert_eq!(response.feed(first, true), Ok(None), "split at {split}");
            assert_eq!(response.feed(second, true), Ok(Some(expected)));
            assert_eq!(response.body, b"abc");
            response.clear();
            assert_eq!(response.feed(bytes, false), Ok(Some(expected)));
            assert_eq!(response.body, b"");
        }
    }

    #[test]
    fn a_response_without_a_length_and_a_byte_too_many_are_malformed() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        ] {
            assert_eq!(Response::default().feed(bytes, false), Err(Malformed));
        }
    }
}
