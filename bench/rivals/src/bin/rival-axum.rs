//! Contender: axum 0.8.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::extract::ws::{Message as Frame, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::routing::{any, get, post};
use axum::serve::ListenerExt;
use futures_util::{SinkExt, StreamExt};
use samovar_rivals::{
    BROADCAST_BACKLOG, Item, Items, Message, Options, TEXT, TEXT_500, blocking, id, sleep,
};
use tokio::sync::broadcast;
use tower_http::services::ServeFile;

fn main() {
    let options = Options::from_command_line();
    options.tokio().block_on(serve(options));
}

async fn serve(options: Options) {
    let (sender, _) = broadcast::channel::<Utf8Bytes>(BROADCAST_BACKLOG);
    let items = Arc::new(options.items());
    let router = Router::new()
        .route("/", any(async |body: axum::body::Bytes| body))
        .route("/text", get(async || TEXT))
        .route("/text500", get(async || &TEXT_500[..]))
        .route("/json", get(async || Json(Message { message: TEXT })))
        .route("/pooled", get(async || blocking(|| TEXT).await))
        .route("/sleep10", get(async || blocking(|| sleep(10)).await))
        .route("/sleep1000", get(async || blocking(|| sleep(1000)).await))
        .route(
            "/item",
            get(move |RawQuery(query): RawQuery| item(query, Arc::clone(&items))),
        )
        .route_service("/file", ServeFile::new(options.dir.join("file")))
        .route_service("/big", ServeFile::new(options.dir.join("big")))
        .route("/upload", post(upload))
        .route(
            "/ws",
            any(async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo)),
        )
        .route(
            "/broadcast",
            any(move |upgrade: WebSocketUpgrade| {
                let sender = sender.clone();
                async move { upgrade.on_upgrade(move |socket| all_hear(socket, sender)) }
            }),
        );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", options.port))
        .await
        .expect("a port");
    let listener = listener.tap_io(|stream| {
        stream.set_nodelay(true).ok();
    });
    axum::serve(listener, router).await.expect("a server");
}

async fn item(query: Option<String>, items: Arc<Items>) -> Json<Item> {
    let id = id(query.as_deref());
    Json(blocking(move || items.find(id)).await.expect("a row"))
}

async fn upload(body: Body) -> String {
    let mut pieces = body.into_data_stream();
    let mut len = 0;
    while let Some(Ok(piece)) = pieces.next().await {
        len += piece.len();
    }
    format!("{len}\n")
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(frame)) = socket.next().await {
        if matches!(frame, Frame::Text(_) | Frame::Binary(_)) && socket.send(frame).await.is_err() {
            return;
        }
    }
}

async fn all_hear(socket: WebSocket, sender: broadcast::Sender<Utf8Bytes>) {
    let mut receiver = sender.subscribe();
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            frame = stream.next() => match frame {
                Some(Ok(Frame::Text(text))) => drop(sender.send(text)),
                Some(Ok(_)) => {}
                _ => return,
            },
            Ok(text) = receiver.recv() => {
                if sink.send(Frame::Text(text)).await.is_err() {
                    return;
                }
            }
        }
    }
}
