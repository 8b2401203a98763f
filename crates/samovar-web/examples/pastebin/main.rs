//! A pastebin: pastes in SQLite with a JSON API, sessions, static files, a log, and a graceful
//! shutdown. Handlers wait for the database; there is no runtime and no pool of connections.
//!
//! ```text
//! cargo run -p samovar-web --example pastebin -- 127.0.0.1:8080 pastes.db
//! xdg-open http://127.0.0.1:8080/
//! curl -c jar -H 'Content-Type: application/json' -d '{"name":"Ada"}' \
//!     http://127.0.0.1:8080/api/session
//! curl -b jar -H 'Content-Type: application/json' -d '{"title":"Tea","text":"Earl Grey"}' \
//!     http://127.0.0.1:8080/api/pastes
//! curl 'http://127.0.0.1:8080/api/pastes?page=1'
//! ```
//!
//! TERM or INT ends the program: responses in progress have ten seconds.

mod store;

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::log::{AccessLog, Logger, Sink};
use samovar_http::{Body, Error, Request, Response, Route, Router, stop_signal, with};
use samovar_web::{
    Cookie, Files, Json, Precondition, RequestExt, RequestIds, ResponseExt, Validators, json,
};
use serde::Deserialize;

use store::{Draft, Paste, Store, Summary};

const COOKIE: &str = "session";
const SESSION_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
const PASTE_LEN_MAX: u64 = 256 * 1024;
const LOG_TIME: Duration = Duration::from_secs(1);

struct App {
    store: Store,
}

#[derive(Deserialize)]
struct Login {
    name: String,
}

impl App {
    /// Returns the name of the user whose session the request belongs to.
    fn user(&self, request: &Request) -> Result<Option<String>, Error> {
        let token = request.cookie(COOKIE).unwrap_or_default();
        Ok(self.store.user_of(&token)?)
    }

    fn known_user(&self, request: &Request) -> Result<String, Error> {
        let user = self.user(request)?;
        user.ok_or_else(|| Error::new(Status::UNAUTHORIZED, "log in first"))
    }

    fn show_user(&self, request: &mut Request) -> Result<Json<serde_json::Value>, Error> {
        Ok(Json(serde_json::json!({ "name": self.user(request)? })))
    }

    fn log_in(&self, request: &mut Request) -> Result<Response, Error> {
        let login: Login = request.json()?;
        if !(1..=40).contains(&login.name.len()) {
            return Err(Error::new(Status::BAD_REQUEST, "a name has 1 to 40 bytes"));
        }
        let token = self.store.start_session(&login.name)?;
        Ok(Response::new(Status::NO_CONTENT, Body::Empty)
            .cookie(Cookie::new(COOKIE, token).max_age(SESSION_TIME)))
    }

    fn log_out(&self, request: &mut Request) -> Result<Response, Error> {
        if let Some(token) = request.cookie(COOKIE) {
            self.store.end_session(&token)?;
        }
        Ok(Response::new(Status::NO_CONTENT, Body::Empty).cookie(Cookie::removal(COOKIE)))
    }

    fn list(&self, request: &mut Request) -> Result<Json<Vec<Summary>>, Error> {
        let page: u32 = request.query_or("page", 1)?;
        let author: Option<String> = request.query_opt("author")?;
        Ok(Json(self.store.list(author.as_deref(), page)?))
    }

    fn add(&self, request: &mut Request) -> Result<Response, Error> {
        let author = self.known_user(request)?;
        let draft = request.json::<Draft>()?;
        let paste = self.store.add(&author, &draft)?;
        let location = format!("/api/pastes/{}", paste.id);
        let response = json(&paste)?.header("Location", location);
        Ok(response.with_status(Status::CREATED))
    }

    fn show(&self, request: &mut Request) -> Result<Response, Error> {
        let paste = self.paste(request)?;
        version(&paste).respond(request, || Json(&paste))
    }

    fn show_text(&self, request: &mut Request) -> Result<Response, Error> {
        let paste = self.paste(request)?;
        version(&paste).respond(request, || paste.text.clone())
    }

    /// Replaces a paste; with `If-Match`, only if it has not been changed since.
    fn change(&self, request: &mut Request) -> Result<Response, Error> {
        let paste = self.own_paste(request)?;
        if version(&paste).check(request.head()) == Precondition::Failed {
            return Err(Status::PRECONDITION_FAILED.into());
        }
        let changed = self
            .store
            .change(&paste, &request.json()?)?
            .ok_or(Status::CONFLICT)?;
        Ok(version(&changed).add_to(json(&changed)?))
    }

    fn delete(&self, request: &mut Request) -> Result<Status, Error> {
        let paste = self.own_paste(request)?;
        self.store.delete(paste.id)?;
        Ok(Status::NO_CONTENT)
    }

    fn paste(&self, request: &Request) -> Result<Paste, Error> {
        let found = self.store.find(request.param_as("id")?)?;
        found.ok_or_else(|| Error::new(Status::NOT_FOUND, "there is no such paste"))
    }

    fn own_paste(&self, request: &Request) -> Result<Paste, Error> {
        let name = self.known_user(request)?;
        let paste = self.paste(request)?;
        if paste.author != name {
            return Err(Error::new(
                Status::FORBIDDEN,
                "the paste has another author",
            ));
        }
        Ok(paste)
    }
}

fn version(paste: &Paste) -> Validators {
    Validators::new().etag(format!("\"{}-{}\"", paste.id, paste.version))
}

/// All errors are JSON, also those of the engine.
fn failure(error: &Error) -> Response {
    let body = serde_json::json!({ "error": error.message() });
    Response::json(error.status(), body.to_string())
}

fn router(app: &Arc<App>, files: &Files, access: AccessLog) -> Router {
    Router::new()
        .get("/api/session", with(app, App::show_user))
        .post("/api/session", with(app, App::log_in))
        .delete("/api/session", with(app, App::log_out))
        .get("/api/pastes", with(app, App::list))
        .route(Route::post("/api/pastes", with(app, App::add)).body_len_max(PASTE_LEN_MAX))
        .get("/api/pastes/{id}", with(app, App::show))
        .route(Route::put("/api/pastes/{id}", with(app, App::change)).body_len_max(PASTE_LEN_MAX))
        .delete("/api/pastes/{id}", with(app, App::delete))
        .get("/raw/{id}", with(app, App::show_text))
        .get("/", files.handler())
        .get("/static/{*path}", files.handler())
        .wrap(RequestIds::new().handler())
        .wrap(|request, next| {
            next.run(request)
                .set_header("X-Content-Type-Options", "nosniff")
        })
        .on_error(|_, error| failure(error))
        .observe(access)
}

fn main() -> Result<(), Box<dyn StdError>> {
    let mut arguments = std::env::args().skip(1);
    let addr = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let database = arguments.next().unwrap_or("pastes.db".into());
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pastebin/web");
    let store = Store::open(Path::new(&database))?;
    let app = Arc::new(App { store });
    let log = Logger::stderr()?;
    let access = AccessLog::open(Sink::stderr(), &log)?;
    let router = router(&app, &Files::new(web)?, access.clone());
    for request in router.serve_until(addr, stop_signal()?, Duration::from_secs(10))? {
        log.warning(format_args!("left behind: {request}"));
    }
    access.flush(LOG_TIME);
    log.flush(LOG_TIME);
    Ok(())
}
