//! Bodies larger than memory: files with ranges, and a generator. `samovar_web::Files` serves a
//! directory with media types and validators.
//!
//! ```text
//! cargo run --example streaming_download -- 127.0.0.1:8080 /usr/share/doc
//! curl http://127.0.0.1:8080/files/bash/README
//! curl -r 0-99 http://127.0.0.1:8080/files/bash/README
//! curl http://127.0.0.1:8080/count
//! ```

use std::fs::File;
use std::io;
use std::path::Path;

use samovar_http::http::Status;
use samovar_http::http::range::{RangeOutcome, resolve};
use samovar_http::{Body, Error, Request, Response, Router};

/// Sends a file, or a range of it, with `sendfile`.
fn file(request: &mut Request, folder: &Path) -> Result<Response, Error> {
    let path = request.param_path("path").ok_or(Status::NOT_FOUND)?;
    let file = File::open(folder.join(path)).map_err(|error| match error.kind() {
        // A path below a file is as absent as any other.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Status::NOT_FOUND.into(),
        _ => Error::from(error),
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Status::NOT_FOUND.into());
    }
    let len = metadata.len();
    let range = request.head().header("range").unwrap_or_default();
    Ok(match resolve(range, len) {
        RangeOutcome::Whole => Response::new(Status::OK, Body::file(file)?),
        RangeOutcome::Part { start, end } => {
            Response::new(Status::PARTIAL_CONTENT, Body::file_range(file, start..end))
                .header("Content-Range", format!("bytes {start}-{}/{len}", end - 1))
        }
        RangeOutcome::Unsatisfiable => Response::new(Status::RANGE_NOT_SATISFIABLE, Body::Empty)
            .header("Content-Range", format!("bytes */{len}")),
    }
    .header("Accept-Ranges", "bytes"))
}

/// Generates the pieces of a body as the client reads.
fn count(_: &mut Request) -> Response {
    let lines = (1..=100_000).map(|number| Ok(format!("{number}\n").into_bytes()));
    Response::new(Status::OK, Body::pieces(lines))
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let folder = std::env::args().nth(2).unwrap_or(".".into());
    let file = move |request: &mut Request| file(request, Path::new(&folder));
    Router::new()
        .get("/files/{*path}", file)
        .get("/count", count)
        .serve(addr)
}
