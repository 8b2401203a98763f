//! Contender: actix-web 4.

use actix_files::NamedFile;
use actix_web::error::ErrorInternalServerError;
use actix_web::web::{self, Data, Payload};
use actix_web::{App, Error, HttpRequest, HttpResponse, HttpServer};
use actix_ws::Message as Frame;
use futures_util::StreamExt;
use samovar_rivals::{BROADCAST_BACKLOG, Item, Items, Message, Options, TEXT, TEXT_500, id, sleep};
use tokio::sync::broadcast;

type Sender = broadcast::Sender<bytestring::ByteString>;

fn main() -> std::io::Result<()> {
    actix_web::rt::System::new().block_on(serve(Options::from_command_line()))
}

async fn serve(options: Options) -> std::io::Result<()> {
    let (sender, _): (Sender, _) = broadcast::channel(BROADCAST_BACKLOG);
    let (threads, port) = (options.threads, options.port);
    let items = Data::new(options.items());
    HttpServer::new(move || {
        App::new()
            .app_data(Data::new(options.clone()))
            .app_data(Data::new(sender.clone()))
            .app_data(items.clone())
            .route("/", web::to(async |body: web::Bytes| body))
            .route("/text", web::get().to(async || TEXT))
            .route("/text500", web::get().to(async || &TEXT_500[..]))
            .route(
                "/json",
                web::get().to(async || web::Json(Message { message: TEXT })),
            )
            .route("/pooled", web::get().to(async || web::block(|| TEXT).await))
            .route(
                "/sleep10",
                web::get().to(async || web::block(|| sleep(10)).await),
            )
            .route(
                "/sleep1000",
                web::get().to(async || web::block(|| sleep(1000)).await),
            )
            .route("/item", web::get().to(item))
            .route("/{name:file|big}", web::get().to(file))
            .route("/upload", web::post().to(upload))
            .route("/ws", web::get().to(echo))
            .route("/broadcast", web::get().to(all_hear))
    })
    .workers(threads)
    .backlog(1024)
    .bind(("127.0.0.1", port))?
    .run()
    .await
}

async fn item(request: HttpRequest, items: Data<Items>) -> Result<web::Json<Item>, Error> {
    let id = id(Some(request.query_string()));
    let item = web::block(move || items.find(id)).await?;
    Ok(web::Json(item.map_err(ErrorInternalServerError)?))
}

async fn file(name: web::Path<String>, options: Data<Options>) -> std::io::Result<NamedFile> {
    NamedFile::open_async(options.dir.join(&*name)).await
}

async fn upload(mut payload: Payload) -> Result<String, Error> {
    let mut len = 0;
    while let Some(piece) = payload.next().await {
        len += piece?.len();
    }
    Ok(format!("{len}\n"))
}

async fn echo(request: HttpRequest, body: Payload) -> Result<HttpResponse, Error> {
    let (response, mut session, mut stream) = actix_ws::handle(&request, body)?;
    actix_web::rt::spawn(async move {
        while let Some(Ok(frame)) = stream.next().await {
            let sent = match frame {
                Frame::Text(text) => session.text(text).await,
                Frame::Binary(bytes) => session.binary(bytes).await,
                Frame::Ping(bytes) => session.pong(&bytes).await,
                Frame::Close(_) => break,
                _ => Ok(()),
            };
            if sent.is_err() {
                return;
            }
        }
        session.close(None).await.ok();
    });
    Ok(response)
}

async fn all_hear(
    request: HttpRequest,
    body: Payload,
    sender: Data<Sender>,
) -> Result<HttpResponse, Error> {
    let (response, mut session, mut stream) = actix_ws::handle(&request, body)?;
    let mut receiver = sender.subscribe();
    actix_web::rt::spawn(async move {
        loop {
            tokio::select! {
                frame = stream.next() => match frame {
                    Some(Ok(Frame::Text(text))) => drop(sender.send(text)),
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                    _ => return,
                },
                Ok(text) = receiver.recv() => {
                    if session.text(text).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    Ok(response)
}
