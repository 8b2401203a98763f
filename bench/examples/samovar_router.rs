//! samovar-http as its README shows it: a `Router`, and `serve` with all defaults. The endpoints
//! are those of `bench/rivals`.
//!
//! Usage: `router PORT DIR`

mod endpoints;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::ws::Upgrade;
use samovar_http::{Request, Response, Route, Router};

use self::endpoints::items::Items;
use self::endpoints::{Hearer, TEXT, TEXT_500, UPLOAD_LEN_MAX};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, dir] = &words[..] else {
        return Err(io::Error::other("PORT DIR"));
    };
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let dir = PathBuf::from(dir);
    let items = Arc::new(Items::new(dir.join("items.sqlite")));
    let (file, big) = (dir.join("file"), dir.join("big"));
    let hearer = Hearer::default();
    Router::new()
        .get("/text", |_| TEXT)
        .get("/text500", |_| &TEXT_500[..])
        .get("/json", |_| Response::json(Status::OK, endpoints::json()))
        .get("/pooled", |_| TEXT)
        .get("/sleep10", |_| endpoints::sleep(10))
        .get("/sleep1000", |_| endpoints::sleep(1000))
        .get("/item", move |request: &mut Request| {
            endpoints::item(request, &items)
        })
        .get("/file", move |_| endpoints::file(&file))
        .get("/big", move |_| endpoints::file(&big))
        .route(Route::post("/upload", endpoints::upload).streaming(UPLOAD_LEN_MAX))
        .get("/ws", |request| {
            Upgrade::new(endpoints::echo).accept(request)
        })
        .get("/broadcast", move |request: &mut Request| {
            Upgrade::new(hearer.clone()).accept(request)
        })
        .serve((Ipv4Addr::LOCALHOST, port))
}
