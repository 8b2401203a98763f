//! Contender: tiny_http 0.12, with the four threads of its documentation. It also has a thread for
//! each connection.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;

use samovar_rivals::{Items, Message, Options, TEXT, TEXT_500, id, sleep};
use tiny_http::{Header, Request, Response, ResponseBox, Server};

/// Number of threads that run handlers.
const THREADS: usize = 4;

fn main() {
    let options = Arc::new(Options::from_command_line());
    let items = Arc::new(options.items());
    let server = Arc::new(Server::http(("127.0.0.1", options.port)).expect("a port"));
    let threads = [(); THREADS].map(|()| {
        let (server, options, items) = (server.clone(), options.clone(), items.clone());
        thread::spawn(move || {
            while let Ok(mut request) = server.recv() {
                let response = answer(&mut request, &options, &items);
                // A client that has gone gets no response.
                request.respond(response).ok();
            }
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
}

fn answer(request: &mut Request, options: &Options, items: &Items) -> ResponseBox {
    let url = request.url().to_owned();
    let (path, query) = url.split_once('?').unwrap_or((&url, ""));
    match path {
        "/text" | "/pooled" => data("text/plain", TEXT),
        "/text500" => data("text/plain", &TEXT_500[..]),
        "/json" => {
            let json = serde_json::to_vec(&Message { message: TEXT });
            data("application/json", json.expect("JSON"))
        }
        "/sleep10" => data("text/plain", sleep(10)),
        "/sleep1000" => data("text/plain", sleep(1000)),
        "/item" => {
            let item = items.find(id(Some(query))).expect("a row");
            data("application/json", serde_json::to_vec(&item).expect("JSON"))
        }
        "/file" | "/big" => {
            let file = File::open(options.dir.join(&path[1..])).expect("a file");
            Response::from_file(file).boxed()
        }
        "/upload" => {
            let len = io::copy(request.as_reader(), &mut io::sink()).unwrap_or_default();
            data("text/plain", format!("{len}\n"))
        }
        _ => Response::empty(404).boxed(),
    }
}

fn data(content_type: &str, bytes: impl Into<Vec<u8>>) -> ResponseBox {
    let header = Header::from_bytes("Content-Type", content_type).expect("a header");
    Response::from_data(bytes).with_header(header).boxed()
}
