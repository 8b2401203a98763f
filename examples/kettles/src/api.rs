//! Routes and handlers. `/login`, `/command`, `/measurement`, `/statistics` and `/metrics` behave
//! like those of the original server, a Haskell program of 2017; the other endpoints are new.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use samovar_http::http::{Method, Status};
use samovar_http::ws::Socket;
use samovar_http::{
    Body, Error, Head, Inline, Params, Prepared, Reply, Request, Response, Route, Router, with,
};

use crate::auth::Names;
use crate::command::{Command, Commands, NOTHING};
use crate::device::DeviceId;
use crate::ingest::{Ingest, Refusal, Work};
use crate::json::{self, Window, Wrong};
use crate::live::Live;
use crate::metrics::{CONTENT_TYPE, Counting, Metrics};
use crate::time::Time;

/// Request header that identifies a kettle. Any client that knows a device ID can send data as that
/// kettle.
const AUTH_HEADER: &str = "servant-auth-cookie";
/// Maximum length of the body of a request about one kettle, in bytes.
const BODY_LEN_MAX: u64 = 64 * 1024;
/// Maximum length of a gateway's batch, in bytes: about 10,000 measurements.
const GATEWAY_LEN_MAX: u64 = 2 << 20;

/// State shared by all handlers.
#[derive(Debug)]
pub struct App {
    /// Queue of the work for the store.
    pub ingest: Arc<Ingest>,
    /// Commands that kettles have not confirmed.
    pub commands: Arc<Commands>,
    /// Metrics of this server.
    pub metrics: Arc<Metrics>,
    /// Clients of the live page, which receive metrics.
    pub live: Live,
    /// The most recent WebSocket of each kettle.
    sockets: Mutex<HashMap<DeviceId, Socket>>,
    /// Token required to give commands; without one, the server accepts no commands.
    admin_token: Option<String>,
    /// Whether other processes may write to the store.
    is_shared: bool,
    /// Verifies and issues device IDs.
    names: Names,
    /// Number of deferred responses so far. It varies `Retry-After`, so that refused clients do not
    /// all retry in the same second.
    refused: AtomicU32,
}

/// Reason why a request has no valid device ID.
enum Stranger {
    /// The header is missing.
    NoHeader,
    /// The ID is not a UUID, or was not issued by this server.
    BadId,
}

impl App {
    /// Creates the shared state.
    pub fn new(
        ingest: Arc<Ingest>,
        commands: Arc<Commands>,
        metrics: Arc<Metrics>,
        admin_token: Option<String>,
        is_shared: bool,
        names: Names,
    ) -> Self {
        Self {
            ingest,
            commands,
            metrics,
            live: Live::default(),
            sockets: Mutex::default(),
            admin_token,
            is_shared,
            names,
            refused: AtomicU32::new(0),
        }
    }

    /// Builds the router.
    pub fn router(app: &Arc<Self>) -> Router {
        let small = |route: Route| route.body_len_max(BODY_LEN_MAX);
        // Handled on the I/O thread: parsing, checking and queueing a measurement take less time
        // than waking a worker thread.
        let measurement = Route::post("/measurement", with(app, Self::measurement));
        let gateway = Route::post("/measurements", with(app, Self::measurements));
        let order = Route::post("/devices/{id}/command", with(app, Self::order));
        let command = Route::get("/command", with(app, Self::command));
        let answer_command = Self::answer_command(app);
        let (kettle, live) = (Arc::clone(app), Arc::clone(app));
        Router::new()
            .route(small(Route::post("/login", with(app, Self::login))))
            .route(command.inline(answer_command))
            .route(measurement.inline_body(BODY_LEN_MAX))
            .route(gateway.body_len_max(GATEWAY_LEN_MAX))
            .route(small(order))
            .get("/statistics", with(app, Self::statistics))
            .get("/metrics", with(app, Self::metrics))
            .get("/healthz", |_| "ok\n")
            .get("/kettle", move |request: &mut Request| {
                crate::socket::open(&kettle, request)
            })
            .get("/", |_| {
                Response::redirect(Status::TEMPORARY_REDIRECT, "/live")
            })
            .get("/live", |_| crate::live::page())
            .get("/live/socket", move |request: &mut Request| {
                live.live.open(request)
            })
            .on_error(|_, error| error_as_json(error))
            .observe(Counting(Arc::clone(&app.metrics)))
    }

    fn login(&self, request: &mut Request) -> Result<Response, Error> {
        json::login(request.body()).map_err(wrong)?;
        let device = self.names.issue()?;
        let answer = format!("{{\"username\":\"{device}\"}}");
        let done = Response::json(Status::OK, answer);
        Ok(self.when_durable(Work::Login(device), done))
    }

    /// Handles `GET /command` on the I/O thread: most kettles have no command, and commands are in
    /// memory.
    fn answer_command(
        app: &Arc<Self>,
    ) -> impl for<'a> Fn(Head<'a>, Params<'a>, Reply<'a>) -> Inline + Send + Sync + 'static {
        let app = Arc::clone(app);
        let json = [("Content-Type", "application/json")];
        let nothing = Prepared::new(Status::OK, &json, NOTHING.as_bytes());
        move |head, _, reply| match app.device(head) {
            Ok(device) => match app.command_of(device, head) {
                None => reply.prepared(&nothing),
                Some(command) => reply.response(Response::json(Status::OK, command.to_json())),
            },
            Err(stranger) => reply.response(stranger.answer()),
        }
    }

    /// Returns the command to send to a kettle: that of an operator, or else the one that follows
    /// from its history. Marks an operator's command as sent, unless the request is HEAD.
    fn command_of(&self, device: DeviceId, head: Head<'_>) -> Option<Command> {
        let now = Time::now();
        let ordered = match head.method() {
            Method::Head => self.commands.due_now(device, now),
            _ => self.commands.deliver(device, now),
        };
        ordered.or_else(|| self.ingest.habits().command(device, now))
    }

    /// Handles `GET /command` like `answer_command`, for HTTP/2, which runs no handlers inline.
    fn command(&self, request: &mut Request) -> Response {
        let device = match self.device(request.head()) {
            Ok(device) => device,
            Err(stranger) => return stranger.answer(),
        };
        let command = self.command_of(device, request.head());
        let json = command.map_or_else(|| NOTHING.to_owned(), |command| command.to_json());
        Response::json(Status::OK, json)
    }

    fn measurement(&self, request: &mut Request) -> Result<Response, Error> {
        let device = match self.device(request.head()) {
            Ok(device) => device,
            Err(stranger) => return Ok(stranger.answer()),
        };
        let measurement =
            json::measurement(request.body(), device, self.window()).map_err(wrong)?;
        let done = Response::new(Status::OK, Body::Empty);
        Ok(self.when_durable(Work::One(measurement), done))
    }

    fn measurements(&self, request: &mut Request) -> Result<Response, Error> {
        let device = match self.device(request.head()) {
            Ok(device) => device,
            Err(stranger) => return Ok(stranger.answer()),
        };
        let measurements =
            json::measurements(request.body(), device, self.window()).map_err(wrong)?;
        if !measurements.iter().all(|it| self.names.is_valid(it.device)) {
            return Ok(Stranger::BadId.answer());
        }
        let answer = format!("{{\"stored\":{}}}", measurements.len());
        let done = Response::json(Status::OK, answer);
        Ok(self.when_durable(Work::Many(measurements), done))
    }

    /// Returns the range of times that measurements may have.
    pub fn window(&self) -> Window {
        Window::now(self.ingest.options().retain_days)
    }

    fn statistics(&self, _: &mut Request) -> Response {
        let ingest = Arc::clone(&self.ingest);
        let respond = move || Response::json(Status::OK, ingest.totals().to_json());
        if self.is_shared {
            self.durable_then(Work::Look, respond)
        } else {
            respond()
        }
    }

    fn metrics(&self, _: &mut Request) -> Response {
        let text = self.metrics.text(&self.ingest);
        Response::text(Status::OK, text).set_header("Content-Type", CONTENT_TYPE)
    }

    /// Handles a command for a kettle from a client with the admin token.
    fn order(&self, request: &mut Request) -> Result<Response, Error> {
        let token = request.head().header("authorization");
        let token = token.and_then(bearer_token);
        match &self.admin_token {
            Some(expected) if token.is_some_and(|token| is_same(token, expected.as_bytes())) => {}
            Some(_) => {
                let answer = json::error("commands require the admin token");
                return Ok(Response::json(Status::UNAUTHORIZED, answer)
                    .header("WWW-Authenticate", "Bearer"));
            }
            None => {
                return Err(Error::new(
                    Status::FORBIDDEN,
                    "this server accepts no commands: start it with --admin-token",
                ));
            }
        }
        let id = request.param("id").unwrap_or_default();
        let device = DeviceId::parse(id.as_bytes())
            .ok_or_else(|| Error::new(Status::NOT_FOUND, "the device ID is not a UUID"))?;
        let command = json::command(request.body(), device).map_err(wrong)?;
        let done = Response::json(Status::CREATED, command.to_json());
        let socket = self.sockets().get(&device).cloned();
        let commands = Arc::clone(&self.commands);
        Ok(self.durable_then(Work::Command(command), move || {
            // The kettle gets the command before the client gets the response.
            if let Some(socket) = socket {
                crate::socket::send_unsent_command(&commands, device, &socket);
            }
            done
        }))
    }

    /// Sends commands that have become due to connected kettles.
    pub fn send_due_commands(&self) {
        for device in self.commands.take_due(Time::now()) {
            let socket = self.sockets().get(&device).cloned();
            if let Some(socket) = socket {
                crate::socket::send_unsent_command(&self.commands, device, &socket);
            }
        }
    }

    /// Sends the response `done` once `work` is durable, or 503 if it is refused.
    fn when_durable(&self, work: Work, done: Response) -> Response {
        self.durable_then(work, move || done)
    }

    /// Sends the response that `done` returns once `work` is durable, or 503 if it is refused.
    fn durable_then(
        &self,
        work: Work,
        done: impl FnOnce() -> Response + Send + 'static,
    ) -> Response {
        let (responder, response) = Response::later();
        // Under overload, many requests are refused at once, so their retries are spread over five
        // seconds.
        let retry_s = 1 + self.refused.fetch_add(1, Ordering::Relaxed) % 5;
        let acknowledge = move |outcome: Result<(), Refusal>| {
            responder.respond(match outcome {
                Ok(()) => done(),
                Err(refusal) => busy(refusal, retry_s),
            });
        };
        self.ingest.push(work, Box::new(acknowledge));
        response
    }

    /// Returns the device of a request if its ID is valid.
    fn device(&self, head: Head<'_>) -> Result<DeviceId, Stranger> {
        let device = device(head)?;
        let is_valid = self.names.is_valid(device);
        is_valid.then_some(device).ok_or(Stranger::BadId)
    }

    /// Returns the device of a request if its ID is valid, or else the response that refuses the
    /// request.
    ///
    /// # Errors
    ///
    /// If the ID is invalid; the error is the response that refuses the request.
    pub fn device_of(&self, request: &Request) -> Result<DeviceId, Box<Response>> {
        self.device(request.head())
            .map_err(|stranger| Box::new(stranger.answer()))
    }

    /// Locks the map of the kettles' WebSockets, by device.
    pub fn sockets(&self) -> MutexGuard<'_, HashMap<DeviceId, Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the device named in a request; accepts any ID.
fn device(head: Head<'_>) -> Result<DeviceId, Stranger> {
    let name = head.header(AUTH_HEADER).ok_or(Stranger::NoHeader)?;
    DeviceId::parse(name).ok_or(Stranger::BadId)
}

/// Returns the device named in a request, or the response that refuses it; accepts any ID.
///
/// # Errors
///
/// If the request names no device; the error is the response that refuses the request.
pub fn device_of(request: &Request) -> Result<DeviceId, Box<Response>> {
    device(request.head()).map_err(|stranger| Box::new(stranger.answer()))
}

impl Stranger {
    /// Returns the status and text that the original server sent.
    fn answer(self) -> Response {
        match self {
            Self::NoHeader => Response::text(Status::UNAUTHORIZED, "Missing auth header"),
            Self::BadId => Response::text(Status::FORBIDDEN, "Invalid Cookie"),
        }
    }
}

/// Returns the token of an `Authorization` field; the scheme may have any case (RFC 9110, 11.1).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Returns whether two byte strings are equal, in constant time.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = |acc: u8, (one, other): (&u8, &u8)| acc | (one ^ other);
    one.len() == other.len() && one.iter().zip(other).fold(0, differs) == 0
}

fn error_as_json(error: &Error) -> Response {
    Response::json(error.status(), json::error(error.message()))
}

fn wrong(wrong: Wrong) -> Error {
    let status = if wrong.is_malformed() {
        Status::BAD_REQUEST
    } else {
        Status::UNPROCESSABLE_CONTENT
    };
    Error::new(status, wrong.to_string())
}

fn busy(refusal: Refusal, retry_s: u32) -> Response {
    let message = match refusal {
        Refusal::Full => "the queue is full",
        Refusal::Late => "the measurement waited too long",
        Refusal::Failed => "the store is unavailable",
        Refusal::Ending => "the server is shutting down",
    };
    Response::json(Status::SERVICE_UNAVAILABLE, json::error(message))
        .header("Retry-After", retry_s.to_string())
}
