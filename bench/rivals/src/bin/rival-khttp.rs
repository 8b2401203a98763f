//! Contender: khttp 0.2, with its event loop on epoll and its default number of threads.

use std::fs::File;
use std::io;
use std::sync::Arc;

use khttp::{Headers, Method, ResponseHandle, Server};
use samovar_rivals::{Message, Options, TEXT, TEXT_500, id, sleep};

fn main() -> io::Result<()> {
    let options = Options::from_command_line();
    let items = Arc::new(options.items());
    let mut server = Server::builder(("127.0.0.1", options.port))?;
    server.route(Method::Get, "/text", |_, response| text(response, TEXT));
    server.route(Method::Get, "/text500", |_, response| {
        response.ok(&typed("text/plain"), TEXT_500)
    });
    server.route(Method::Get, "/json", |_, response| {
        let json = serde_json::to_vec(&Message { message: TEXT })?;
        response.ok(&typed("application/json"), json)
    });
    server.route(Method::Get, "/pooled", |_, response| text(response, TEXT));
    server.route(Method::Get, "/sleep10", |_, response| {
        text(response, sleep(10))
    });
    server.route(Method::Get, "/sleep1000", |_, response| {
        text(response, sleep(1000))
    });
    server.route(Method::Get, "/item", move |request, response| {
        let item = items
            .find(id(request.uri.query()))
            .map_err(io::Error::other)?;
        response.ok(&typed("application/json"), serde_json::to_vec(&item)?)
    });
    for name in ["file", "big"] {
        let path = options.dir.join(name);
        server.route(Method::Get, &format!("/{name}"), move |_, response| {
            let file = File::open(&path)?;
            let mut headers = typed("application/octet-stream");
            headers.set_content_length(Some(file.metadata()?.len()));
            response.okr(&headers, file)
        });
    }
    server.route(Method::Post, "/upload", |mut request, response| {
        let len = io::copy(request.body(), &mut io::sink())?;
        response.ok(&typed("text/plain"), format!("{len}\n"))
    });
    server.build().serve_epoll()
}

fn text(response: &mut ResponseHandle<'_>, text: &str) -> io::Result<()> {
    response.ok(&typed("text/plain"), text)
}

fn typed(content_type: &'static str) -> Headers<'static> {
    let mut headers = Headers::new();
    headers.add(Headers::CONTENT_TYPE, content_type.as_bytes());
    headers
}
