//! A form with files. They are streamed to a folder in constant memory, whatever their size.
//!
//! ```text
//! cargo run --example multipart
//! xdg-open http://127.0.0.1:8080/
//! curl -F title=Tea -F photo=@tea.jpg http://127.0.0.1:8080/upload
//! ```

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response, Route, Router};

const PAGE: &str = r#"<!doctype html>
<form action="/upload" method="post" enctype="multipart/form-data">
  <input name="title"> <input name="photo" type="file"> <button>Send</button>
</form>
"#;

fn upload(request: &mut Request, folder: &Path, count: &AtomicU64) -> Result<String, Error> {
    let mut said = String::new();
    let mut form = request.multipart()?;
    while let Some(mut part) = form.next_part()? {
        let name = part.name().to_owned();
        if part.file_name().is_some() {
            // The client's name for the file is not to be trusted, so it gets one of ours.
            let number = count.fetch_add(1, Ordering::Relaxed);
            let len = io::copy(
                &mut part,
                &mut File::create(folder.join(number.to_string()))?,
            )?;
            said += &format!("{name}: file {number}, {len} bytes\n");
        } else {
            said += &format!("{name}: {}\n", part.text(1000)?);
        }
    }
    Ok(said)
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let folder = std::env::temp_dir().join(format!("samovar-uploads-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let count = AtomicU64::new(0);
    let upload = move |request: &mut Request| upload(request, &folder, &count);
    Router::new()
        .get("/", |_| Response::html(Status::OK, PAGE))
        .route(Route::post("/upload", upload).streaming(10 << 30))
        .serve(addr)
}
