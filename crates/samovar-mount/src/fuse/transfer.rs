//! [`Origin`]: the NAR file of a snapshot on a server, from which any part of the NAR is read.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use samovar_client::http::{Http, content_range, first_line};
use samovar_client::snapshot::frames;
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::seek_table::Frames;
use samovar_verify::decoded_nar;
use ureq::Body;
use ureq::http::Response;

/// Length of a read of a body, in bytes.
const PIECE_LEN: usize = 128 << 10;

/// The NAR file of a snapshot on a server.
#[derive(Debug)]
pub(super) struct Origin {
    http: Http,
    /// Path of the file below the URL of the cache, with a leading slash.
    path: String,
    layout: Layout,
    nar_size: u64,
    request_count: AtomicU64,
}

/// How the NAR is found in the file.
#[derive(Debug)]
enum Layout {
    /// The file is the NAR.
    Plain,
    /// The file consists of frames with a seek table.
    Frames(Frames),
    /// The file must be read from its start.
    Stream(Compression),
}

/// A piece of a transfer.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// Bytes of the NAR, from this offset.
    Data(u64, &'a [u8]),
    /// The file does not have valid data for these bytes of the NAR.
    Damaged(Range<u64>),
    /// Bytes arrived that are not decompressed yet.
    Progress,
}

/// Why a transfer ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The server does not send the file. The reason is a fragment.
    Unreachable(String),
    /// The caller of the transfer ended it.
    ByCaller,
}

/// Receives the pieces of a transfer. Returns whether the transfer goes on.
pub(super) type Receive<'a> = dyn FnMut(Piece<'_>) -> bool + 'a;

impl Origin {
    /// Finds the file of a narinfo, and reads its seek table.
    ///
    /// # Errors
    ///
    /// The server does not send the file. The reason is a fragment.
    pub(super) fn open(http: Http, info: &NarInfo) -> Result<Self, String> {
        let mut origin = Self {
            http,
            path: format!("/{}", info.url),
            layout: Layout::Stream(info.compression),
            nar_size: info.nar_size,
            request_count: AtomicU64::new(0),
        };
        match info.compression {
            Compression::None => origin.layout = Layout::Plain,
            Compression::Zstd => {
                if let Some(frames) = frames(&origin.http, &origin.path, info.nar_size)? {
                    origin.layout = Layout::Frames(frames);
                }
            }
            _ => {}
        }
        Ok(origin)
    }

    /// Returns whether parts of the NAR can be read without all that precedes them.
    pub(super) fn can_seek(&self) -> bool {
        !matches!(self.layout, Layout::Stream(_))
    }

    /// Returns the number of requests so far.
    pub(super) fn request_count(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }

    /// Returns the URL of the file.
    pub(super) fn url(&self) -> String {
        self.http.url(&self.path)
    }

    /// Transfers these bytes of the NAR, in their order. More may be transferred before and after
    /// them.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub(super) fn transfer(
        &self,
        bytes: &Range<u64>,
        receive: &mut Receive<'_>,
    ) -> Result<(), Stopped> {
        if bytes.is_empty() {
            return Ok(());
        }
        match &self.layout {
            Layout::Plain => self.plain(bytes, receive),
            Layout::Frames(frames) => self.framed(frames, bytes, receive),
            Layout::Stream(compression) => self.stream(*compression, receive),
        }
    }

    fn plain(&self, bytes: &Range<u64>, receive: &mut Receive<'_>) -> Result<(), Stopped> {
        let mut body = self.range(bytes)?;
        let mut piece = vec![0; PIECE_LEN];
        let mut at = bytes.start;
        while at < bytes.end {
            let left = usize::try_from(bytes.end - at).unwrap_or(PIECE_LEN);
            let piece = piece.get_mut(..left.min(PIECE_LEN)).unwrap_or_default();
            body.read_exact(piece).map_err(unreachable)?;
            go_on(receive(Piece::Data(at, piece)))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn framed(
        &self,
        frames: &Frames,
        bytes: &Range<u64>,
        receive: &mut Receive<'_>,
    ) -> Result<(), Stopped> {
        let frames = frames.covering(bytes);
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else {
            return Ok(());
        };
        let mut at = first.file.start;
        let mut body = self.range(&(at..last.file.end))?;
        let mut decoder = zstd::bulk::Decompressor::new()
            .map_err(|error| Stopped::Unreachable(error.to_string()))?;
        let (mut compressed, mut content) = (Vec::new(), Vec::new());
        for frame in frames {
            // Skippable frames may precede the frame.
            let gap = frame.file.start.saturating_sub(at);
            io::copy(&mut body.by_ref().take(gap), &mut io::sink()).map_err(unreachable)?;
            let len = frame.file.end - frame.file.start;
            compressed.clear();
            while (compressed.len() as u64) < len {
                let left = (len - compressed.len() as u64).min(PIECE_LEN as u64);
                let read = body.by_ref().take(left).read_to_end(&mut compressed);
                if read.map_err(unreachable)? == 0 {
                    return Err(Stopped::Unreachable("the file is truncated".to_owned()));
                }
                go_on(receive(Piece::Progress))?;
            }
            at = frame.file.end;
            let content_len = frame.content.end - frame.content.start;
            let content_len = usize::try_from(content_len).unwrap_or_default();
            content.resize(content_len, 0);
            let decoded = decoder.decompress_to_buffer(&compressed, &mut content);
            go_on(match decoded {
                Ok(len) if len == content_len => {
                    receive(Piece::Data(frame.content.start, &content))
                }
                _ => receive(Piece::Damaged(frame.content.clone())),
            })?;
        }
        Ok(())
    }

    fn stream(&self, compression: Compression, receive: &mut Receive<'_>) -> Result<(), Stopped> {
        let response = self.request(None).map_err(Stopped::Unreachable)?;
        if response.status() != 200 {
            return Err(Stopped::Unreachable(refusal(response)));
        }
        let mut body = Watched {
            inner: response.into_body().into_reader(),
            failure: None,
        };
        let mut at = 0;
        let mut is_stopped = false;
        let nar_size = self.nar_size;
        let decoded = decoded_nar(&mut body, compression, |content| -> io::Result<()> {
            let mut piece = vec![0; PIECE_LEN];
            while at < nar_size {
                let left = usize::try_from(nar_size - at).unwrap_or(PIECE_LEN);
                let piece = piece.get_mut(..left.min(PIECE_LEN)).unwrap_or_default();
                let len = content.read(piece)?;
                if len == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if !receive(Piece::Data(at, piece.get(..len).unwrap_or_default())) {
                    is_stopped = true;
                    return Ok(());
                }
                at += len as u64;
            }
            Ok(())
        });
        match (body.failure, decoded.flatten()) {
            (_, Ok(())) if is_stopped => Err(Stopped::ByCaller),
            (_, Ok(())) => Ok(()),
            (Some(failure), _) => Err(Stopped::Unreachable(failure)),
            (None, Err(_)) => go_on(receive(Piece::Damaged(at..nar_size))),
        }
    }

    /// Returns the body of a response with these bytes of the file.
    fn range(&self, bytes: &Range<u64>) -> Result<impl Read + use<>, Stopped> {
        let range = format!("bytes={}-{}", bytes.start, bytes.end - 1);
        let response = self.request(Some(&range)).map_err(Stopped::Unreachable)?;
        let is_part = response.status() == 206
            && content_range(&response).is_some_and(|(start, _)| start == bytes.start);
        let is_whole = response.status() == 200 && bytes.start == 0;
        if !is_part && !is_whole {
            return Err(Stopped::Unreachable(refusal(response)));
        }
        Ok(response.into_body().into_reader())
    }

    fn request(&self, range: Option<&str>) -> Result<Response<Body>, String> {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.http.get_part(&self.path, range)
    }
}

/// A body that remembers its first error, because decompressors hide it.
struct Watched<R> {
    inner: R,
    failure: Option<String>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out);
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failure.get_or_insert(error.to_string());
        }
        read
    }
}

fn refusal(response: Response<Body>) -> String {
    let status = response.status();
    match first_line(response) {
        Some(line) => format!("the server answered {status}: {line}"),
        None => format!("the server answered {status}"),
    }
}

fn unreachable(error: io::Error) -> Stopped {
    Stopped::Unreachable(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => error.to_string(),
    })
}

fn go_on(goes_on: bool) -> Result<(), Stopped> {
    goes_on.then_some(()).ok_or(Stopped::ByCaller)
}
