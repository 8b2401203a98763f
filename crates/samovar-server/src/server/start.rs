//! The stages of a start: [`Prepared`], [`Bound`], [`Serving`].
//!
//! Each stage consumes the previous one. Before the switch of the user, files that only root may
//! read are read and sockets are bound. The store is opened after the switch, because the new user
//! must be able to read the store.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, geteuid, getrlimit, setrlimit};
use samovar_cache::{CacheConfig, LeaseConfig, NarCoding, Program, Site, SiteConfig, Trust};
use samovar_http::{Server, handover};
use samovar_metrics::{Metrics, Observer};
use samovar_nix::StoreDir;
use samovar_storage::gc::Summary;
use samovar_storage::nodes::{self, Membership, NameClaim, NodeSettings};
use samovar_storage::{RootKind, Storage, StorageError, upkeep};
use samovar_store::{Settings, Store, StoreUri, has_default_store};

use super::admin::{Admin, Planned};
use super::bind::{self, Secure};
use super::observer::Logs;
use super::reload::{self, Again};
use super::unencrypted::unencrypted;
use super::upgrade::{Event, Kind, Predecessor};
use super::{caches, nar_cache, node, outages};
use crate::config::{
    CacheSettings, Configuration, GC_LEASE_TIME_DEFAULT, LogTarget, Names, cores, machine_name,
    nearest,
};
use crate::daemon::{Background, Identity, PidFile};
use crate::log::{AccessLog, ErrorLog};
use crate::notify::{self, Watchdog};
use crate::signals::{SignalThread, listen};

/// Maximum time for writing the last log lines.
pub(super) const FLUSH_TIME: Duration = Duration::from_secs(2);

/// URI of a store without paths.
const NO_STORE: &str = "none";

/// Time in which each I/O thread must answer the watchdog. A thread that does not counts as stuck.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The first stage: logs, keys, accounts and certificate are read, and no socket is bound.
pub(super) struct Prepared<'a> {
    pub(super) config: &'a Configuration,
    pub(super) logs: Arc<Logs>,
    caches: Vec<CacheConfig>,
    identity: Option<Identity>,
    tls: Option<Secure<'a>>,
}

/// The second stage: the sockets are bound, and the PID file is written.
pub(super) struct Bound<'a> {
    pub(super) prepared: Prepared<'a>,
    pub(super) bound: bind::Bound,
    admin: Option<Planned>,
    /// The PID file, still under its temporary name if there is a predecessor; `None` if none is
    /// configured.
    pid_file: Option<PidFile>,
    /// Whether this is the main process of a service of systemd, since its start or since an
    /// upgrade.
    pub(super) is_main: bool,
    /// The server that has passed its sockets to this process; `None` if there is none, or once it
    /// is released.
    predecessor: Option<handover::Predecessor>,
    /// The storage directory of the predecessor.
    storage_before: Option<PathBuf>,
    /// The claim of the node's name; `None` if it needs none.
    name_claim: Option<NameClaim>,
}

/// The third stage: the process runs as the configured user, and the server answers requests.
pub(super) struct Serving<'a> {
    pub(super) bound: Bound<'a>,
    pub(super) server: Arc<Server<Site>>,
    /// Kind of each listener, to be passed to a successor.
    pub(super) kinds: Vec<Kind>,
    /// URLs of the listeners, for the log and the status.
    urls: Vec<String>,
    /// The admin server; `None` before [`announce`](Self::announce), and if it is turned off.
    pub(super) admin: Option<Admin>,
    pub(super) sender: Sender<Event>,
    pub(super) events: Receiver<Event>,
    /// The membership among the nodes that share the database; `None` before
    /// [`announce`](Self::announce), and if no other server shares it.
    membership: Option<Membership>,
    /// The threads for signals and for the watchdog, which run until this value is dropped.
    _threads: (SignalThread, Option<Watchdog>),
}

impl<'a> Prepared<'a> {
    pub(super) fn read(
        config: &'a Configuration,
        identity: Option<Identity>,
        errors: &ErrorLog,
    ) -> anyhow::Result<Self> {
        let access = match &config.access_log {
            Some(target) => {
                let made = match target {
                    LogTarget::File(path) => super::make_log(path, identity.as_ref()),
                    LogTarget::StandardOutput => Ok(()),
                };
                let open = || AccessLog::open(target, config.access_log_format, errors.clone());
                Some(made.and_then(|()| open()).with_context(|| {
                    let option = config.names.option("log.access");
                    format!("cannot open the access log {target}: set {option} to another file")
                })?)
            }
            None => None,
        };
        let caches = caches::read(&config.caches, errors)?;
        nar_cache::check(config)?;
        let tls = match &config.tls {
            Some(options) => Some(Secure {
                options,
                config: reload::read_certificate(options, &config.names, errors)?,
            }),
            None => None,
        };
        Ok(Self {
            config,
            logs: Arc::new(Logs::new(access, errors.clone(), config.client_address)),
            caches,
            identity,
            tls,
        })
    }

    pub(super) fn bind(self, predecessor: Option<Predecessor>) -> anyhow::Result<Bound<'a>> {
        let (config, errors) = (self.config, &self.logs.errors);
        let pid = predecessor.as_ref().map(Predecessor::pid);
        let was_main = predecessor.as_ref().is_some_and(|one| one.is_main);
        let is_main = was_main || notify::is_main_process();
        let storage_before = predecessor.as_ref().and_then(|one| one.storage.clone());
        let tls = self.tls.as_ref();
        let (mut bound, predecessor) = match predecessor {
            Some(predecessor) => {
                let is_managed = predecessor.is_managed;
                let (sockets, release) = predecessor.take(tls.is_some())?;
                let bound = bind::taken(sockets, is_managed, config, tls, errors)?;
                (bound, Some(release))
            }
            None => (bind::listeners(config, tls, errors)?, None),
        };
        for listener in &mut bound.listeners {
            let spread = listener.spread(cores());
            spread.context("cannot open a socket for each I/O thread")?;
        }
        let metrics = || Metrics::new(Arc::clone(&self.logs) as _);
        let admin = Planned::bind(config, metrics, predecessor.is_some(), errors)?;
        if let Some(planned) = &admin {
            self.logs.count_with(&planned.metrics);
        }
        let pid_file = match (&config.pid_file, &predecessor) {
            (Some(path), None) => Some(PidFile::write(path)?),
            (Some(path), Some(_)) => Some(PidFile::prepare(path, pid)?),
            (None, _) => None,
        };
        Ok(Bound {
            prepared: self,
            bound,
            admin,
            pid_file,
            is_main,
            predecessor,
            storage_before,
            name_claim: None,
        })
    }
}

impl<'a> Bound<'a> {
    /// Switches the user and starts the server.
    pub(super) fn start(mut self) -> anyhow::Result<Serving<'a>> {
        if let Some(identity) = &self.prepared.identity {
            identity.assume()?;
            super::warn_of_unreadable(self.prepared.config, &self.prepared.logs.errors);
        }
        let config = self.prepared.config;
        let site = self.site()?;
        raise_descriptor_limit();
        let mut builder = Server::builder(site)
            .limits(config.limits.clone())
            .io_threads(cores())
            .workers(config.worker_count());
        let (mut kinds, mut urls, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for listener in std::mem::take(&mut self.bound.listeners) {
            kinds.push(self.bound.files.kind(&listener));
            let scheme = if listener.is_secure() {
                "https"
            } else {
                "http"
            };
            let address = listener.local_addr();
            urls.extend(address.map(|address| format!("{scheme}://{address}")));
            if !listener.is_secure() {
                plain.extend(address.map(|address| address.ip()));
            }
            builder = builder.listen(listener);
        }
        if let Some((fault, fix)) = unencrypted(config, plain) {
            let errors = &self.prepared.logs.errors;
            errors.warning(format_args!("{fault}; {fix}"));
        }
        let paths = self.bound.files.paths();
        urls.extend(paths.map(|path| format!("unix:{}", path.display())));
        let (sender, events) = channel();
        let signals = sender.clone();
        let signals = listen(move |signal| signals.send(Event::Signal(signal)).is_ok())
            .context("cannot catch signals")?;
        let server = Arc::new(builder.start().context("cannot start threads")?);
        let watched = Arc::downgrade(&server);
        let works = move || {
            let server = watched.upgrade();
            server.is_some_and(|server| server.answers_within(ANSWER_TIME))
        };
        let watchdog = notify::watchdog(works).context("cannot start the watchdog's thread")?;
        Ok(Serving {
            bound: self,
            server,
            kinds,
            urls,
            admin: None,
            sender,
            events,
            membership: None,
            _threads: (signals, watchdog),
        })
    }

    fn site(&mut self) -> anyhow::Result<Site> {
        let (config, logs) = (self.prepared.config, &self.prepared.logs);
        let store = open_store(config, &logs.errors)?;
        for warning in caches::root_warnings(&config.caches, &*store) {
            logs.errors.warning(warning);
        }
        let mut caches = std::mem::take(&mut self.prepared.caches);
        let before = self.storage_before.as_deref();
        let storage = open_storage(config, store.store_dir(), before, &logs.errors)?;
        if let Some(storage) = &storage {
            anyhow::ensure!(
                storage.is_alone() || self.predecessor.is_some(),
                "another process uses the storage {:?}{}: stop it first, or send it USR2 to \
                 replace it without downtime",
                storage.directory(),
                storage
                    .user()
                    .map_or_else(String::new, |pid| format!(" (process {pid})"))
            );
            if self.predecessor.is_none() {
                self.name_claim = node::claim_name(storage, config)?;
            }
            caches::add_uploads(&mut caches, &config.caches, storage)?;
            caches::add_oidc(&mut caches, config, None)?;
            storage.set_retentions(caches::retentions(config));
            for warning in caches::upload_warnings(&config.caches, storage)? {
                logs.errors.warning(warning);
            }
        }
        let nar_cache = nar_cache::space(config, &logs.errors)?;
        let is_zstd = |cache: &CacheSettings| cache.coding == NarCoding::Zstd;
        if nar_cache.is_none() && config.caches.iter().any(is_zstd) {
            logs.errors.warning(
                "compression is zstd, but there is no NAR cache: each download compresses its NAR \
                 again, and none can be resumed; set nar-cache.directory",
            );
        }
        // A start that fails earlier leaves the directory as it was.
        caches::mirror_first(&caches)()?;
        let observer: Arc<dyn Observer> = match &self.admin {
            Some(planned) => Arc::clone(&planned.metrics) as _,
            None => Arc::clone(logs) as _,
        };
        let shown = self.admin.as_ref().filter(|_| config.admin.is_on_cache);
        let upstreams = caches::upstreams(config, &*store, storage.as_ref(), &observer)?;
        let site_config = SiteConfig {
            caches,
            upstreams,
            storage,
            nar_cache,
            narinfo_memory_len: config.narinfo_memory_len,
            shown_metrics: shown.map(|planned| Arc::clone(&planned.metrics)),
            gc_lease: gc_lease(config),
            trust: Trust {
                is_first_hashed: config.verifies_first,
                state_directory: config.state_directory.clone(),
                scrub_rate: config.scrub_rate,
            },
            program: Program {
                name: config.names.program.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            ..SiteConfig::default()
        };
        let site = Site::new(store, site_config, observer);
        logs.introduce(site.clients());
        Ok(site)
    }
}

impl Serving<'_> {
    /// Logs the addresses, notifies launcher, predecessor and service manager, and starts
    /// background work.
    pub(super) fn announce(&mut self, background: Option<Background>) -> anyhow::Result<()> {
        let bound = &mut self.bound;
        let (config, errors) = (bound.prepared.config, &bound.prepared.logs.errors);
        let site = self.server.service();
        let prefixes: Vec<&str> = config.caches.iter().map(|cache| &*cache.prefix).collect();
        let prefixes = prefixes.join(", ");
        for url in &self.urls {
            let prefixes = if url.starts_with("unix:") {
                ""
            } else {
                &prefixes
            };
            let store_dir = site.store().store_dir();
            match site.store().is_none() {
                true => errors.info(format_args!("serving uploaded paths on {url}{prefixes}")),
                false => errors.info(format_args!("serving {store_dir} on {url}{prefixes}")),
            }
        }
        if let Some(background) = background {
            background.ready(config.error_log.as_deref())?;
        }
        if let Some(pid_file) = &mut bound.pid_file {
            pid_file.put()?;
        }
        match bound.predecessor.take() {
            // Release the predecessor: the service manager listens to it, and it announces this
            // process.
            Some(release) => release.release().context("the running server has ended")?,
            None => notify::ready(),
        }
        bound.bound.retire(config, errors);
        if let Some(planned) = bound.admin.take() {
            let tls = bound.prepared.tls.as_ref();
            let tls = tls.map(|secure| secure.config.clone());
            self.admin = Some(planned.start(&self.server, config, &self.urls, tls, errors)?);
        }
        site.prefetch_narinfos().context("cannot start a thread")?;
        site.watch_files().context("cannot start a thread")?;
        if let Some(storage) = site.storage() {
            let errors = errors.clone();
            let report = move |outcome: Result<Summary, (&str, StorageError)>| match outcome {
                Ok(summary) if summary == Summary::default() => {}
                Ok(summary) => errors.info(format_args!("collected uploaded paths: {summary}")),
                Err((task, error)) => errors.error(format_args!("cannot {task}: {error}")),
            };
            upkeep::start(storage, site.mirror_repair(), report)
                .context("cannot start a thread")?;
            outages::watch(storage, bound.prepared.logs.errors.clone())
                .context("cannot start a thread")?;
            let settings = NodeSettings {
                name: config.node_name(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                host: machine_name(),
                address: self.urls.first().cloned(),
            };
            let claim = bound.name_claim.take();
            self.membership = nodes::join(storage, settings, claim)?;
        }
        Ok(())
    }

    /// Reloads the caches and the certificates.
    pub(super) fn reload(&self, again: &Again<'_>) {
        let Prepared {
            config, logs, tls, ..
        } = &self.bound.prepared;
        reload::reload(self.server.service(), config, again, logs);
        if let Some(tls) = tls {
            reload::reload_certificates(tls.options, &tls.config, &logs.errors);
        }
    }

    /// Leaves the files of Unix sockets to the successor.
    pub(super) fn leave_socket_files(&mut self) {
        self.bound.bound.files.leave();
    }

    pub(super) fn exit(self) {
        self.server.service().stop_watching();
        if let Some(storage) = self.server.service().storage()
            && let Err(error) = upkeep::write_uses(storage)
        {
            let errors = &self.bound.prepared.logs.errors;
            errors.error(format_args!(
                "cannot write the last uses of uploaded paths: {error}"
            ));
        }
        // Dropping the server waits for its workers, and one of them may wait for a disk forever.
        std::mem::forget(self.server);
        let logs = self.bound.prepared.logs;
        logs.flush(FLUSH_TIME);
        drop(self.bound.bound);
        if let Some(pid_file) = self.bound.pid_file
            && let Err(error) = pid_file.remove()
        {
            let errors = &logs.errors;
            errors.debug(format_args!("cannot remove the PID file: {error}"));
        }
    }
}

/// Raises the limit of open files to the hard limit. Service managers set 1024 by default, for the
/// sake of programs that use select(2).
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A failure only means a lower limit of connections.
    setrlimit(Resource::Nofile, limit).ok();
}

/// Returns the configuration of GC leases; `None` if they are turned off. Unless leases were
/// configured, a missing daemon causes no warning.
fn gc_lease(config: &Configuration) -> Option<LeaseConfig> {
    let time = config.gc_lease.unwrap_or(GC_LEASE_TIME_DEFAULT);
    (!time.is_zero()).then_some(LeaseConfig {
        time,
        is_configured: config.gc_lease.is_some(),
    })
}

/// Opens the storage for uploads, if one is configured. `before`: the storage of the server that
/// this one replaces.
fn open_storage(
    config: &Configuration,
    store_dir: &StoreDir,
    before: Option<&Path>,
    errors: &ErrorLog,
) -> anyhow::Result<Option<Arc<Storage>>> {
    let Some(location) = config.location()? else {
        return Ok(None);
    };
    let directory = location.directory();
    let failed = || format!("cannot use the storage {directory:?}");
    refuse_root(directory, &config.names).with_context(failed)?;
    let is_new = RootKind::at(&location).with_context(failed)? == RootKind::New;
    anyhow::ensure!(
        !is_new || before != Some(directory),
        "the storage {directory:?} of the running server is not there: put its directory back"
    );
    let storage = Storage::open(&location, store_dir).with_context(failed)?;
    if is_new {
        errors.info(format_args!(
            "{directory:?} is a new storage; if you meant another directory, correct {}",
            config.names.option("storage")
        ));
    }
    Ok(Some(storage))
}

/// Refuses to use the storage of another user as root: the server would make files that the
/// storage's owner, who runs the server at other times, cannot use.
fn refuse_root(directory: &Path, names: &Names) -> anyhow::Result<()> {
    let owner = samovar_storage::owned(directory)?.uid();
    anyhow::ensure!(
        !geteuid().is_root() || owner == 0,
        "it belongs to user {owner}, who could not use the files of a server that root runs: set \
         {} to {owner}, or start the server as that user",
        names.option("user")
    );
    Ok(())
}

/// Returns the URI of the store to serve; `None` for the one that the environment names. A server
/// for uploads needs no store, and has none on a machine without one.
pub(crate) fn store_uri<'a>(config: &'a Configuration, settings: &Settings) -> Option<&'a str> {
    let is_configured = config.store.is_some() || settings.remote.is_some();
    let is_missing = || !is_configured && config.storage.is_some() && !has_default_store(settings);
    config
        .store
        .as_deref()
        .or_else(|| is_missing().then_some(NO_STORE))
}

/// Opens the configured store, and logs warnings about its URI and schema.
pub(super) fn open_store(
    config: &Configuration,
    errors: &ErrorLog,
) -> anyhow::Result<Box<dyn Store>> {
    let settings = Settings::from_process()?;
    let given = config.store.as_deref().or(settings.remote.as_deref());
    if let Ok(uri) = StoreUri::parse(given.unwrap_or_default()) {
        for name in uri.unknown_parameters() {
            // Without a misspelled parameter, another store would be served.
            if let Some(meant) = nearest(name, StoreUri::LOCATIONS) {
                let given = given.unwrap_or_default();
                anyhow::bail!(
                    "unknown parameter {name:?} in the store URI {given:?}; did you mean {meant:?}?"
                );
            }
            errors.warning(format_args!(
                "unknown parameter {name:?} in the store URI is ignored"
            ));
        }
    }
    let uri = store_uri(config, &settings);
    if uri == Some(NO_STORE) && config.store.is_none() {
        errors.info(
            "this machine has no Nix store: only uploaded paths are served, as with store = \
             \"none\"",
        );
    }
    let store = samovar_store::open(uri, &settings)?;
    if let Some(remark) = store.take_schema_warning() {
        errors.warning(remark);
    }
    Ok(store)
}
