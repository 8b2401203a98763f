//! Contender: hyper 1, without a framework.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use samovar_rivals::{
    BROADCAST_BACKLOG, Items, Message, Options, TEXT, TEXT_500, blocking, id, sleep,
};
use tokio::sync::broadcast;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as WsMessage;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::io::ReaderStream;

/// Bytes of a file to read at once. The default of 4 KiB would make the comparison unfair.
const FILE_PIECE_LEN: usize = 256 << 10;

type Body = BoxBody<Bytes, std::io::Error>;
type Socket = WebSocketStream<TokioIo<Upgraded>>;

struct State {
    options: Options,
    items: Arc<Items>,
    sender: broadcast::Sender<Utf8Bytes>,
}

fn main() {
    let options = Options::from_command_line();
    options.tokio().block_on(serve(options));
}

async fn serve(options: Options) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", options.port))
        .await
        .expect("a port");
    let (sender, _) = broadcast::channel(BROADCAST_BACKLOG);
    let items = Arc::new(options.items());
    let state = Arc::new(State {
        options,
        items,
        sender,
    });
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        stream.set_nodelay(true).ok();
        let state = Arc::clone(&state);
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(answer(request, &state).await) }
        });
        tokio::spawn(async move {
            let mut builder = http1::Builder::new();
            builder.pipeline_flush(true).timer(TokioTimer::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            connection.with_upgrades().await.ok();
        });
    }
}

async fn answer(request: Request<Incoming>, state: &State) -> Response<Body> {
    match request.uri().path() {
        "/" => {
            let body = request.into_body().collect().await;
            full(
                "text/plain",
                body.map(|body| body.to_bytes()).unwrap_or_default(),
            )
        }
        "/text" => full("text/plain", Bytes::from_static(TEXT.as_bytes())),
        "/text500" => full("text/plain", Bytes::from_static(&TEXT_500)),
        "/json" => {
            let json = serde_json::to_vec(&Message { message: TEXT }).expect("JSON");
            full("application/json", json.into())
        }
        "/pooled" => full("text/plain", blocking(|| TEXT).await.into()),
        "/sleep10" => full("text/plain", blocking(|| sleep(10)).await.into()),
        "/sleep1000" => full("text/plain", blocking(|| sleep(1000)).await.into()),
        "/item" => {
            let (items, id) = (Arc::clone(&state.items), id(request.uri().query()));
            let item = blocking(move || items.find(id)).await.expect("a row");
            let json = serde_json::to_vec(&item).expect("JSON");
            full("application/json", json.into())
        }
        path @ ("/file" | "/big") => file(&state.options.dir.join(&path[1..])).await,
        "/upload" => upload(request.into_body()).await,
        "/ws" => upgrade(request, echo),
        "/broadcast" => {
            let sender = state.sender.clone();
            upgrade(request, move |socket| all_hear(socket, sender))
        }
        _ => {
            let mut response = full("text/plain", Bytes::new());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

fn full(content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let body = Full::new(bytes).map_err(|never| match never {}).boxed();
    Response::builder()
        .header(CONTENT_TYPE, content_type)
        .body(body)
        .expect("a response")
}

async fn file(path: &Path) -> Response<Body> {
    let file = tokio::fs::File::open(path).await.expect("a file");
    let len = file.metadata().await.expect("its length").len();
    let pieces = ReaderStream::with_capacity(file, FILE_PIECE_LEN).map_ok(Frame::data);
    let body = BodyExt::boxed(StreamBody::new(pieces));
    let response = Response::builder().header(CONTENT_LENGTH, len);
    response
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(body)
        .expect("a response")
}

async fn upload(mut body: Incoming) -> Response<Body> {
    let mut len = 0;
    while let Some(Ok(frame)) = body.frame().await {
        len += frame.data_ref().map_or(0, Bytes::len);
    }
    full("text/plain", format!("{len}\n").into())
}

fn upgrade<F, T>(mut request: Request<Incoming>, talk: F) -> Response<Body>
where
    F: FnOnce(Socket) -> T + Send + 'static,
    T: Future<Output = ()> + Send,
{
    let key = request
        .headers()
        .get("sec-websocket-key")
        .map(|key| derive_accept_key(key.as_bytes()));
    tokio::spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(&mut request).await {
            let stream = TokioIo::new(upgraded);
            talk(WebSocketStream::from_raw_socket(stream, Role::Server, None).await).await;
        }
    });
    let mut response = full("text/plain", Bytes::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, "websocket".parse().expect("a value"));
    headers.insert(CONNECTION, "Upgrade".parse().expect("a value"));
    let key = key.unwrap_or_default();
    headers.insert(SEC_WEBSOCKET_ACCEPT, key.parse().expect("a value"));
    response
}

async fn echo(mut socket: Socket) {
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}

async fn all_hear(socket: Socket, sender: broadcast::Sender<Utf8Bytes>) {
    let mut receiver = sender.subscribe();
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(Ok(WsMessage::Text(text))) => drop(sender.send(text)),
                Some(Ok(_)) => {}
                _ => return,
            },
            Ok(text) = receiver.recv() => {
                if sink.send(WsMessage::Text(text)).await.is_err() {
                    return;
                }
            }
        }
    }
}
