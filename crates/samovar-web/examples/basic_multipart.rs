//! A form with files. The files are streamed to a directory in constant memory, whatever their
//! size.
//!
//! ```text
//! cargo run -p samovar-web --example basic_multipart
//! xdg-open http://127.0.0.1:8080/
//! curl -F title=Tea -F photo=@tea.jpg http://127.0.0.1:8080/upload
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response, Route, Router};
use samovar_web::RequestExt;

const PAGE: &str = r#"<!doctype html>
<form action="/upload" method="post" enctype="multipart/form-data">
  <input name="title"> <input name="photo" type="file"> <button>Send</button>
</form>
"#;

fn upload(request: &mut Request, folder: &Path, count: &AtomicU64) -> Result<String, Error> {
    let mut lines = String::new();
    let mut form = request.multipart()?;
    while let Some(mut part) = form.next_part()? {
        let name = part.name().to_owned();
        if part.file_name().is_some() {
            // The client's name of the file may be any path, so the file gets a number.
            let number = count.fetch_add(1, Ordering::Relaxed);
            let mut file = File::create(folder.join(number.to_string()))?;
            let len = io::copy(&mut part, &mut file)?;
            lines += &format!("{name}: file {number}, {len} bytes\n");
        } else {
            lines += &format!("{name}: {}\n", part.text(1000)?);
        }
    }
    Ok(lines)
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let addr = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let folder = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let count = AtomicU64::new(0);
    let upload = move |request: &mut Request| upload(request, &folder, &count);
    Router::new()
        .get("/", |_| Response::html(Status::OK, PAGE))
        .route(Route::post("/upload", upload).streaming(10 << 30))
        .serve(addr)
}
