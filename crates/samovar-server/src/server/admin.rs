//! The admin server: metrics, health and status, on separate listeners.
//!
//! The admin server has its own threads, so that it answers even if the main server has no free
//! thread. Its sockets are not passed on in an upgrade. The old process closes its sockets when it
//! is released, so the new process tries to bind its own until then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use samovar_cache::{Site, admin};
use samovar_http::tls::TlsConfig;
use samovar_http::{Limits, Listener, Router, Server};
use samovar_metrics::{Metrics, MetricsConfig, Sampler};

use super::bind::{self, SocketFiles};
use crate::config::Configuration;
use crate::log::ErrorLog;

/// Maximum number of attempts of an upgraded server to bind the listeners, and the pause between
/// them.
const TRY_COUNT: u32 = 100;
const TRY_STEP: Duration = Duration::from_millis(100);

/// Maximum number of connections: operators, monitors and service managers are few.
const CONNECTION_COUNT_MAX: usize = 256;

/// The admin server before the main server exists.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) metrics: Arc<Metrics>,
    /// The bound listeners; `None` while the predecessor still listens on their addresses.
    bound: Option<Bound>,
}

/// Listeners, and the files of the Unix sockets among them.
type Bound = (Vec<Listener>, SocketFiles);

/// The admin server: running, or waiting for its listeners.
#[derive(Debug)]
pub(super) struct Admin {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    running: Option<Running>,
    has_ended: bool,
}

/// The running admin server. Its fields are dropped in order. The socket files must come first:
/// once the server has closed its listeners, a successor may create files with the same inode
/// numbers, which would be taken for the files of this process.
#[derive(Debug)]
struct Running {
    _files: SocketFiles,
    _server: Option<Server<Router>>,
    _sampler: Sampler,
}

impl Planned {
    /// Binds the configured listeners; returns `None` if there are none, and the caches serve no
    /// metrics, either. With `is_successor`, binds
    /// nothing yet, because the predecessor still listens on these addresses.
    pub(super) fn bind(
        config: &Configuration,
        metrics: impl FnOnce() -> Metrics,
        is_successor: bool,
        errors: &ErrorLog,
    ) -> anyhow::Result<Option<Self>> {
        if config.admin.listeners.is_empty() && !config.admin.is_on_cache {
            return Ok(None);
        }
        let bound = match bind::admin(config, errors) {
            _ if is_successor => None,
            Ok(bound) => Some(bound),
            Err(error) if config.admin.is_default => {
                if !config.admin.is_on_cache {
                    errors.warning(format_args!(
                        "there are no metrics and no status page: {error:#}"
                    ));
                    return Ok(None);
                }
                errors.warning(format_args!("there is no status page: {error:#}"));
                Some((Vec::new(), SocketFiles::default()))
            }
            Err(error) => return Err(error.context("metrics and status page")),
        };
        Ok(Some(Self {
            metrics: Arc::new(metrics()),
            bound,
        }))
    }

    /// Starts the admin server of `server`.
    pub(super) fn start(
        self,
        server: &Arc<Server<Site>>,
        config: &Configuration,
        addresses: &[String],
        tls: Option<TlsConfig>,
        errors: &ErrorLog,
    ) -> anyhow::Result<Admin> {
        let about = MetricsConfig {
            name: config.names.program.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            listeners: addresses.to_vec(),
            has_top_paths: config.admin.has_top_paths,
            warnings: warnings(config),
            tls,
        };
        self.metrics.watch(about, Arc::downgrade(server));
        let start = |bound| Running::start(bound, &self.metrics, errors);
        let running = self.bound.map(start).transpose()?;
        let is_starting = running.is_none();
        let state = State {
            running,
            has_ended: false,
        };
        let admin = Admin {
            state: Arc::new(Mutex::new(state)),
        };
        if is_starting {
            let (state, metrics) = (Arc::clone(&admin.state), self.metrics);
            let (config, errors) = (config.clone(), errors.clone());
            let named = std::thread::Builder::new().name("admin-start".to_owned());
            named
                .spawn(move || start_late(&state, &metrics, &config, &errors))
                .context("cannot start a thread")?;
        }
        Ok(admin)
    }
}

impl Admin {
    /// Closes the listeners, because another process needs them now.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended = true;
        let running = state.running.take();
        drop(state);
        // Ends the server after requests in progress.
        drop(running);
    }
}

/// Retries binding the listeners until the predecessor has closed them, then starts the server.
fn start_late(
    state: &Mutex<State>,
    metrics: &Arc<Metrics>,
    config: &Configuration,
    errors: &ErrorLog,
) {
    let mut outcome = Ok(());
    for _ in 0..TRY_COUNT {
        {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return;
            }
            let started = bind::admin(config, errors);
            match started.and_then(|bound| Running::start(bound, metrics, errors)) {
                Ok(running) => {
                    state.running = Some(running);
                    return;
                }
                Err(error) => outcome = Err(error),
            }
        }
        std::thread::sleep(TRY_STEP);
    }
    if let Err(error) = outcome {
        errors.error(format_args!(
            "there are no metrics and no status page: {error:#}"
        ));
    }
}

impl Running {
    fn start(
        (listeners, files): Bound,
        metrics: &Arc<Metrics>,
        errors: &ErrorLog,
    ) -> anyhow::Result<Self> {
        let sampler = Sampler::start(metrics).context("cannot start a thread")?;
        if listeners.is_empty() {
            // The caches alone serve the metrics.
            return Ok(Self {
                _files: files,
                _server: None,
                _sampler: sampler,
            });
        }
        let limits = Limits {
            connections_max: CONNECTION_COUNT_MAX,
            ..Limits::default()
        };
        let mut builder = Server::builder(admin(metrics, &sampler))
            .name("admin-")
            .limits(limits)
            .io_threads(1)
            .workers(2);
        for listener in listeners {
            if let Some(address) = listener.local_addr() {
                errors.info(format_args!("metrics and status on http://{address}"));
            } else if let Some(path) = listener.path() {
                errors.info(format_args!(
                    "metrics and status on unix:{}",
                    path.display()
                ));
            }
            builder = builder.listen(listener);
        }
        Ok(Self {
            _files: files,
            _server: Some(builder.start().context("cannot start threads")?),
            _sampler: sampler,
        })
    }
}

/// Returns warnings about the configuration, for the status page.
fn warnings(config: &Configuration) -> Vec<String> {
    let mut warnings = config.remarks.clone();
    let unsigned = config.caches.iter();
    for cache in unsigned.filter(|cache| cache.secret_key_files.is_empty()) {
        let which = match &*cache.name {
            "" => String::new(),
            name => format!(" of the cache {name}"),
        };
        warnings.push(format!(
            "narinfos{which} are sent with the signatures they have in the store: there is no \
             secret key to sign with"
        ));
    }
    warnings
}
