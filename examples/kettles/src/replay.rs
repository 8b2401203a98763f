//! `kettles replay-2017`: the original server, to watch it saturate.
//!
//! This replica has the properties that limited the original. It has 16 PostgreSQL connections, and
//! an unbounded queue of requests in front of them. For each measurement, it runs a transaction
//! that looks up the device, and then an INSERT with the values as text. For each request of the
//! statistics, it scans the whole history. Its tables are in the schema `replay_2017`, and its sums
//! are rounded.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postgres::{Client, SimpleQueryMessage};
use samovar_http::http::Status;
use samovar_http::{Body, Error, Listener, Request, Responder, Response, Router, Server, with};

use crate::api::device_of;
use crate::command::{Commands, NOTHING};
use crate::device::{DeviceId, Measurement};
use crate::ingest::{Ingest, Options};
use crate::json::{self, Window};
use crate::metrics::{CONTENT_TYPE, Counting, Metrics};
use crate::serve::{TICK, ended, limits};
use crate::store;

const TABLES: &str = include_str!("../migrations/replay-2017.sql");

/// Options of `kettles replay-2017`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Replay {
    /// Loopback port to listen on; 0 picks a free one.
    #[arg(long, short, default_value_t = 8080)]
    pub port: u16,
    /// PostgreSQL URL.
    #[arg(long, short = 'e', value_name = "URL")]
    pub database: String,
    /// Number of database connections.
    #[arg(long, default_value_t = 16, value_name = "COUNT")]
    pub pool: usize,
    /// Extra CPU time per request, as the runtime of that time took.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub handler_cost: u64,
}

/// Work that needs a database connection.
enum Job {
    Login(DeviceId),
    Measurement(Measurement),
    Statistics,
}

struct App {
    /// Unbounded, as in the original server, where this caused the collapse under load.
    queue: Mutex<VecDeque<(Job, Responder)>>,
    has_job: Condvar,
    handler_cost: Duration,
    metrics: Arc<Metrics>,
    /// A queue that is always empty; the code that exports the metrics needs one.
    ingest: Ingest,
}

impl Replay {
    /// Serves until a signal ends it.
    ///
    /// # Errors
    ///
    /// If the database or the port is not available.
    pub fn run(&self) -> Result<()> {
        let is_ended = ended().context("no signals")?;
        let metrics = Arc::new(Metrics::default());
        let commands = Arc::new(Commands::default());
        let app = Arc::new(App {
            queue: Mutex::default(),
            has_job: Condvar::new(),
            handler_cost: Duration::from_micros(self.handler_cost),
            ingest: Ingest::new(Options::default(), commands, Arc::clone(&metrics)),
            metrics: Arc::clone(&metrics),
        });
        let connect = || store::postgres_client(&self.database);
        let mut client = connect().context("cannot open the database")?;
        client.batch_execute(TABLES)?;
        for _ in 0..self.pool.max(1) {
            let mut client = connect().context("cannot open the database")?;
            client.batch_execute("SET search_path TO replay_2017")?;
            let app = Arc::clone(&app);
            // The thread ends with the process.
            std::thread::spawn(move || app.work(client));
        }
        let addr = SocketAddr::from(([127, 0, 0, 1], self.port));
        let listener = Listener::tcp(addr, 16_384).context("cannot listen")?;
        let server = Server::builder(app.router())
            .limits(limits())
            .listen(listener);
        let server = server.workers(4).start().context("cannot start")?;
        for addr in server.local_addrs() {
            drop(writeln!(
                io::stdout().lock(),
                "kettles: http://{addr}/statistics"
            ));
        }
        let mut next = Instant::now() + TICK;
        while !is_ended.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(100));
            if Instant::now() >= next {
                next += TICK;
                let asked = Instant::now();
                server.answers_within(TICK);
                metrics.engine(server.load(), asked.elapsed());
            }
        }
        server.drain(Duration::ZERO);
        Ok(())
    }
}

impl App {
    fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .post("/login", with(self, Self::login))
            .get("/command", with(self, Self::command))
            .post("/measurement", with(self, Self::measurement))
            .get("/statistics", with(self, Self::statistics))
            .get("/metrics", with(self, Self::metrics))
            .on_error(|_, error| Response::json(error.status(), json::error(error.message())))
            .observe(Counting(Arc::clone(&self.metrics)))
    }

    fn login(&self, request: &mut Request) -> Result<Response, Error> {
        self.spend();
        json::login(request.body())
            .map_err(|wrong| Error::new(Status::BAD_REQUEST, wrong.to_string()))?;
        Ok(self.later(Job::Login(DeviceId::random()?)))
    }

    fn command(&self, request: &mut Request) -> Response {
        self.spend();
        match device_of(request) {
            Ok(_) => Response::json(Status::OK, NOTHING),
            Err(stranger) => *stranger,
        }
    }

    fn measurement(&self, request: &mut Request) -> Result<Response, Error> {
        self.spend();
        let device = match device_of(request) {
            Ok(device) => device,
            Err(stranger) => return Ok(*stranger),
        };
        let measurement = json::measurement(request.body(), device, Window::now(0))
            .map_err(|wrong| Error::new(Status::BAD_REQUEST, wrong.to_string()))?;
        Ok(self.later(Job::Measurement(measurement)))
    }

    fn statistics(&self, _: &mut Request) -> Response {
        self.later(Job::Statistics)
    }

    fn metrics(&self, _: &mut Request) -> Response {
        let waiting = self.queue().len();
        let text = self.metrics.text(&self.ingest);
        let text = format!(
            "{text}# HELP replay_waiting_requests Requests that wait for a connection.\n\
             # TYPE replay_waiting_requests gauge\nreplay_waiting_requests {waiting}\n"
        );
        Response::text(Status::OK, text).set_header("Content-Type", CONTENT_TYPE)
    }

    fn spend(&self) {
        let started = Instant::now();
        while started.elapsed() < self.handler_cost {
            std::hint::spin_loop();
        }
    }

    /// Defers the response until a connection has done `job`.
    fn later(&self, job: Job) -> Response {
        let (responder, response) = Response::later();
        self.queue().push_back((job, responder));
        self.has_job.notify_one();
        response
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Job, Responder)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs on one connection of the pool.
    fn work(&self, mut client: Client) {
        loop {
            let mut queue = self.queue();
            let (job, responder) = loop {
                if let Some(next) = queue.pop_front() {
                    break next;
                }
                let woken = self.has_job.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            let started = Instant::now();
            let answer = match &job {
                Job::Login(device) => login(&mut client, *device),
                Job::Measurement(measurement) => store_one(&mut client, measurement),
                Job::Statistics => statistics(&mut client),
            };
            if matches!(job, Job::Measurement(_)) && answer.is_ok() {
                self.metrics.committed(1, 0, started.elapsed());
            }
            responder.respond(answer.unwrap_or_else(|error| {
                crate::log::error("a request failed", &error);
                Response::json(Status::INTERNAL_SERVER_ERROR, json::error("no database"))
            }));
        }
    }
}

type Answer = std::result::Result<Response, postgres::Error>;

fn login(client: &mut Client, device: DeviceId) -> Answer {
    client.simple_query(&format!("INSERT INTO device (id) VALUES ('{device}')"))?;
    Ok(Response::json(
        Status::OK,
        format!("{{\"username\":\"{device}\"}}"),
    ))
}

/// Stores a measurement with four round trips and an fsync of its own.
fn store_one(client: &mut Client, it: &Measurement) -> Answer {
    let device = it.device;
    client.simple_query("BEGIN")?;
    let found = client.simple_query(&format!("SELECT id FROM device WHERE id = '{device}'"))?;
    if !found
        .iter()
        .any(|it| matches!(it, SimpleQueryMessage::Row(_)))
    {
        let sql = format!("INSERT INTO device (id) VALUES ('{device}') ON CONFLICT DO NOTHING");
        client.simple_query(&sql)?;
    }
    client.simple_query("COMMIT")?;
    client.simple_query(&format!(
        "INSERT INTO measurement VALUES ('{device}', '{}', {}, {}, {:?}, {:?}, {:?}, {})",
        it.time,
        it.charge_now,
        it.charge_full,
        it.charge_rate,
        it.ambient_temp,
        it.water_temp,
        it.water_level,
    ))?;
    Ok(Response::new(Status::OK, Body::Empty))
}

/// Computes the statistics by several scans of the history.
fn statistics(client: &mut Client) -> Answer {
    const LATEST: &str = "FROM measurement AS m JOIN (SELECT device_id, max(time) AS time
         FROM measurement GROUP BY device_id) AS l
         ON m.device_id = l.device_id AND m.time = l.time";
    let one = |client: &mut Client, sql: &str| -> std::result::Result<i64, postgres::Error> {
        Ok(client.query_one(sql, &[])?.get(0))
    };
    let count = one(client, "SELECT count(*) FROM measurement")?;
    let devices = one(client, "SELECT count(*) FROM device")?;
    let sum = |column| format!("SELECT coalesce(sum(m.{column}), 0)::bigint {LATEST}");
    let charge = one(client, &sum("charge_now"))?;
    let volume = one(client, &sum("water_level"))?;
    let mut temperatures = String::new();
    for row in client.query(
        "SELECT extract(hour FROM time)::integer, avg(water_temp), stddev_pop(water_temp)
         FROM measurement GROUP BY 1",
        &[],
    )? {
        let (hour, mean, deviation): (i32, f64, f64) = (row.get(0), row.get(1), row.get(2));
        let comma = if temperatures.is_empty() { "" } else { "," };
        temperatures.push_str(&format!("{comma}[{hour},[{mean:?},{deviation:?}]]"));
    }
    Ok(Response::json(
        Status::OK,
        format!(
            "{{\"statsMeasurementCount\":{count},\"statsNumDevices\":{devices},\
             \"statsTotalBatteryCharge\":{charge},\"statsTotalWaterVolume\":{volume},\
             \"statsMeanTemperature\":[{temperatures}],\"statsTotalWaterEnergy\":0}}"
        ),
    ))
}
