//! An upload of any size in constant memory: the handler reads the body as it arrives.
//!
//! ```text
//! cargo run --example streaming_upload
//! curl -T big-file http://127.0.0.1:8080/files/big-file
//! ```

use std::fs::File;
use std::io;
use std::path::Path;

use samovar_http::http::Status;
use samovar_http::{Error, Request, Route, Router};

fn upload(request: &mut Request, folder: &Path) -> Result<(Status, String), Error> {
    let name = request.param_path("name").ok_or(Status::BAD_REQUEST)?;
    let path = folder.join(name);
    // If the client disconnects, this returns an error and leaves a partial file. Write to a
    // temporary name to avoid that.
    let len = io::copy(&mut request.reader(), &mut File::create(path)?)?;
    Ok((Status::CREATED, format!("{len} bytes\n")))
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let folder = std::env::temp_dir().join(format!("samovar-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let upload = move |request: &mut Request| upload(request, &folder);
    Router::new()
        .route(Route::put("/files/{name}", upload).streaming(10 << 30))
        .serve(addr)
}
