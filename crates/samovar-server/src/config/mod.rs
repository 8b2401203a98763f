//! The configuration of a server, and its options.
//!
//! [`OptionSpec`] declares all options. [`Settings`] collects their values from file, environment
//! and command line, and [`read`] turns the values into a [`Configuration`].

mod certificates;
mod draft;
mod error;
mod harmonia;
mod issuer_rules;
mod kinds;
mod nearest;
mod oidc;
mod options;
mod read;
mod remarks;
mod rules;
mod settings;
mod storage;
mod toml;
mod unit;
mod upstreams;
pub mod value;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use samovar_cache::access::AccessConfig;
use samovar_cache::{IssuerSettings, NarCoding, PolicyConfig, Sign, SiteConfig, Stored};
use samovar_http::Limits;
use samovar_storage::gc::Retention;
use samovar_upstream::settings::{UpstreamSettings, WhenDown};

pub use error::{ConfigError, Origin};
pub use harmonia::import_harmonia;
pub use kinds::{CertificateFiles, ClientAddress, ClientAuthority, LogForm, LogTarget, Tls};

pub use nearest::nearest;
pub use options::{Kind, OptionSpec, Scope, VARIABLE_PREFIX};
pub use read::{read, show};
pub use settings::{Setting, Settings};
pub(crate) use storage::machine_name;
pub use storage::{BucketSettings, DatabaseSettings};
pub use toml::Value;
pub use unit::{size, time};

use crate::listener::{ADMIN_PORT_DEFAULT, Host, ListenSpec, PORT_DEFAULT};

/// The configuration of a server. `None` stands for a default that depends on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// Names of the program and its options in messages.
    pub names: Names,
    /// Environment variable of the process that replaces this one in an upgrade: the configuration
    /// file that this process has read.
    pub successor_environment: Option<(&'static str, PathBuf)>,
    /// Addresses to listen on, in the order given, each once; never empty. Default: all addresses,
    /// [`PORT_DEFAULT`].
    pub listeners: Vec<ListenSpec>,
    /// Whether `listeners` was configured. If so, each socket that the service manager passes must
    /// be within one of them.
    pub listen_given: bool,
    /// Settings of HTTPS, and the listeners that use it; `None`: no listener uses TLS.
    pub tls: Option<Tls>,
    /// Maximum number of connections that may wait to be accepted, for each listener.
    pub backlog: u32,
    /// Number of worker threads; `None`: chosen by the number of cores.
    pub workers: Option<NonZeroU32>,
    /// Limits of connections. `Duration::MAX` means no time limit.
    pub limits: Limits,
    /// User to switch to once the sockets are bound, by name or number; `None`: the process keeps
    /// its user.
    pub user: Option<String>,
    /// Group to switch to, by name or number; `None`: the primary group of `user`.
    pub group: Option<String>,
    /// Path of the PID file; `None`: no PID file is written.
    pub pid_file: Option<PathBuf>,
    /// Path of the file for the error log; `None`: the log goes to standard error.
    pub error_log: Option<PathBuf>,
    /// Whether the error log includes debug messages.
    pub is_verbose: bool,
    /// Destination of the access log; `None`: there is no access log.
    pub access_log: Option<LogTarget>,
    /// Format of the access log.
    pub access_log_format: LogForm,
    /// Source of the client address that the access log shows.
    pub client_address: ClientAddress,
    /// Settings of the admin server.
    pub admin: AdminSettings,
    /// URI of the store to serve; `None`: the value of `NIX_REMOTE`.
    pub store: Option<String>,
    /// Directory of the NAR cache; `None`: [`Self::cache_directory`].
    pub nar_cache: Option<PathBuf>,
    /// Default directory of the NAR cache. It is used only if it is writable and on a disk.
    pub cache_directory: PathBuf,
    /// Maximum size of the NAR cache, bytes; 0 turns it off. `None`: derived from the free space.
    pub nar_cache_size: Option<u64>,
    /// Memory for narinfos, in bytes. The caches share it equally.
    pub narinfo_memory_len: usize,
    /// Minimum time for which a GC lease protects a path after its narinfo was sent; zero turns
    /// leases off. `None`: [`GC_LEASE_TIME_DEFAULT`] if there is a daemon, otherwise no leases.
    pub gc_lease: Option<Duration>,
    /// Whether the first NAR that is sent of each path is hashed, to compare it with the
    /// registration.
    pub verifies_first: bool,
    /// Directory of the verification records; `None`: they are not stored on disk.
    pub state_directory: Option<PathBuf>,
    /// Rate of background verification, bytes per second; `None`: no background verification.
    pub scrub_rate: Option<NonZeroU64>,
    /// Directory for uploaded paths; `None`: uploads are refused. With a bucket, it has temporary
    /// files and the disk cache.
    pub storage: Option<PathBuf>,
    /// Bucket with the files of uploaded paths; `None`: they are in [`Self::storage`], which is
    /// set if the bucket is.
    pub bucket: Option<BucketSettings>,
    /// PostgreSQL database of uploaded paths; `None`: SQLite in [`Self::storage`]. The bucket is
    /// set if the database is.
    pub database: Option<DatabaseSettings>,
    /// Name of this server among those that use the database; `None`: see [`Self::node_name`].
    pub node: Option<String>,
    /// The upstreams, sorted by name. Names and URLs are different, the latter even without logins.
    pub upstreams: Vec<UpstreamSettings>,
    /// The issuers of ID tokens, sorted by name. Their URLs are different.
    pub oidc: Vec<IssuerSettings>,
    /// Memory for NARs of upstreams while they are passed on, bytes.
    pub upstream_memory_len: usize,
    /// The caches, which have different URL paths; never empty.
    pub caches: Vec<CacheSettings>,
    /// Warnings about the configuration, one line each, to be logged once.
    pub remarks: Vec<String>,
    /// The configuration files, which a reload reads again.
    pub files: Vec<PathBuf>,
}

impl Configuration {
    /// Returns the number of worker threads. Default: eight for each core.
    pub(crate) fn worker_count(&self) -> usize {
        let given = self.workers.map(|count| usize::try_from(count.get()));
        given.map_or(8 * cores(), |count| count.unwrap_or(usize::MAX))
    }

    /// Returns the name of this server among those that use the database. Default: the name of the
    /// machine.
    #[must_use]
    pub fn node_name(&self) -> String {
        self.node.clone().unwrap_or_else(storage::machine_name)
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    // The standard library reads files of control groups for each call.
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Maximum of `priority`: clients read it into a C `int`.
pub const PRIORITY_MAX: u64 = 2_147_483_647;

/// Maximum of `workers`. Each worker is a thread, so a larger number is a mistake.
pub const WORKERS_MAX: u64 = 1024;

/// Maximum of `backlog`, which listen(2) takes as an `int`.
pub const BACKLOG_MAX: u64 = 2_147_483_647;

/// Default of `gc-lease`, used if there is a daemon.
pub const GC_LEASE_TIME_DEFAULT: Duration = Duration::from_secs(600);

/// Minimum of `gc-lease`. Each renewal of a lease costs the daemon a process.
const GC_LEASE_TIME_MIN: Duration = Duration::from_secs(1);

/// Maximum of `connections.max`: by default the kernel allows a process no more descriptors.
const CONNECTIONS_MAX: u64 = 1_000_000;

/// Maximum of `connections.streams`.
const STREAMS_MAX: u64 = 10_000;

/// Maximum of `queue`: each queued request may hold a body in memory.
const QUEUE_LEN_MAX: u64 = 1_000_000;

/// Minimum of `connections.head-size`, bytes: the length of a request with a token and a long name.
const HEAD_LEN_MIN: u64 = 1024;

/// Maximum of `connections.head-size`, bytes: an I/O thread reads this many at once.
const HEAD_LEN_MAX: u64 = 64 * 1024;

/// Minimum of `upstream-memory`, bytes.
const UPSTREAM_MEMORY_LEN_MIN: u64 = 1 << 20;

/// Maximum of `access.rate` and `access.burst`.
const RATE_MAX: u64 = 1_000_000;

impl Default for Configuration {
    fn default() -> Self {
        Self {
            names: Names::default(),
            successor_environment: None,
            listeners: vec![ListenSpec::Tcp {
                host: Host::Any,
                port: PORT_DEFAULT,
            }],
            listen_given: false,
            tls: None,
            backlog: 1024,
            workers: None,
            limits: Limits::default(),
            user: None,
            group: None,
            pid_file: None,
            error_log: None,
            is_verbose: false,
            access_log: None,
            access_log_format: LogForm::Combined,
            admin: AdminSettings::default(),
            client_address: ClientAddress::Peer,
            store: None,
            nar_cache: None,
            storage: None,
            bucket: None,
            database: None,
            node: None,
            // In a directory on a disk, so that it survives a restart of the machine.
            cache_directory: PathBuf::from("/var/tmp"),
            nar_cache_size: None,
            narinfo_memory_len: SiteConfig::default().narinfo_memory_len,
            gc_lease: None,
            verifies_first: true,
            state_directory: None,
            scrub_rate: None,
            upstreams: Vec::new(),
            oidc: Vec::new(),
            upstream_memory_len: 64 << 20,
            caches: vec![CacheSettings::default()],
            remarks: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// Settings of the admin server, which serves metrics, health and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminSettings {
    /// Addresses to listen on; an empty list turns the server off. Default: [`ADMIN_PORT_DEFAULT`]
    /// on the loopback address.
    pub listeners: Vec<ListenSpec>,
    /// Whether `listeners` is the default. If the default cannot be bound, the server starts
    /// without it.
    pub is_default: bool,
    /// Whether the most requested paths appear as labels of metrics.
    pub has_top_paths: bool,
    /// Whether the addresses of the caches serve metrics and health, too.
    pub is_on_cache: bool,
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self {
            listeners: vec![ListenSpec::local(ADMIN_PORT_DEFAULT)],
            is_default: true,
            has_top_paths: false,
            is_on_cache: false,
        }
    }
}

/// Settings of one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Name of the cache; empty for the only cache.
    pub name: String,
    /// URL path of the cache, without a trailing slash and not decoded; empty for the root.
    pub prefix: String,
    /// `Priority` in `nix-cache-info`, at most [`PRIORITY_MAX`].
    pub priority: u32,
    /// Files of the secret keys. An empty path is an error at start: otherwise
    /// `--secret-key-files "$KEYS"` with `KEYS` unset would turn signing off.
    pub secret_key_files: Vec<PathBuf>,
    /// Access rules: which clients may read. By default, all clients may.
    pub access: AccessConfig,
    /// The paths that the keys sign.
    pub sign: Sign,
    /// Whether and when signatures from the store are sent.
    pub stored: Stored,
    /// Whether narinfos of content-addressed paths contain the field `CA`.
    pub emit_ca: bool,
    /// Whether realisations are signed.
    pub signs_realisations: bool,
    /// The form in which NARs of the Nix store are sent.
    pub coding: NarCoding,
    /// Rules that decide which paths may be read.
    pub policy: PolicyConfig,
    /// Texts of the web interface; `None` turns it off.
    pub pages: Option<Pages>,
    /// Rules that decide which uploaded paths the garbage collector keeps.
    pub retention: Retention,
    /// Maximum total length of the files of uploaded paths, in bytes; `None`: no limit.
    pub quota: Option<u64>,
    /// What the cache serves.
    pub sources: Sources,
    /// Names of the upstreams of the cache; `None`: all.
    pub upstreams: Option<Vec<String>>,
    /// Maximum time in which a request for a narinfo waits for upstreams.
    pub upstream_budget: Duration,
    /// What is answered if no upstream has said in time whether a path exists.
    pub upstream_down: WhenDown,
    /// How long it is remembered that no upstream has a path.
    pub negative_ttl: Duration,
}

impl CacheSettings {
    /// Returns the name of the cache in the storage for uploads.
    pub fn storage_name(&self) -> &str {
        match &*self.name {
            "" => "default",
            name => name,
        }
    }

    /// Returns whether the cache passes on what this upstream has.
    pub fn uses(&self, upstream: &UpstreamSettings) -> bool {
        let names = self.upstreams.as_ref();
        self.sources.upstreams && names.is_none_or(|names| names.contains(&upstream.name))
    }
}

/// What a cache serves. A path is looked up in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    /// Paths of the Nix store.
    pub nix_store: bool,
    /// Uploaded paths.
    pub storage: bool,
    /// Paths that upstreams have.
    pub upstreams: bool,
}

impl Sources {
    const NAMES: [&str; 3] = ["nix-store", "storage", "upstreams"];

    /// Parses a list of names; `None` if it is empty, or has an unknown name, one twice, or the
    /// names in another order.
    fn parse(values: &[Value]) -> Option<Self> {
        let mut rest = Self::NAMES.iter().enumerate();
        let mut has = [false; 3];
        for value in values {
            let name = value.as_text()?;
            let (at, _) = rest.find(|(_, known)| **known == name)?;
            *has.get_mut(at)? = true;
        }
        let [nix_store, storage, upstreams] = has;
        (!values.is_empty()).then_some(Self {
            nix_store,
            storage,
            upstreams,
        })
    }

    /// Returns the list of names, as in a configuration file.
    fn list(self) -> String {
        let has = [self.nix_store, self.storage, self.upstreams];
        let named = Self::NAMES.iter().zip(has).filter(|(_, has)| *has);
        let names = named.map(|(name, _)| Value::Text((*name).to_owned()));
        Value::List(names.collect()).to_string()
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            nix_store: true,
            storage: true,
            upstreams: true,
        }
    }
}

/// Texts of a cache's web interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages {
    /// Title; empty for the name of the program.
    pub title: String,
    /// Description of the cache; may be empty.
    pub description: String,
    /// Title that is set for all caches; empty if none is.
    pub server_title: String,
    /// Description that is set for all caches; empty if none is.
    pub server_description: String,
    /// URL at which clients reach the cache; `None`: the URL under which the browser has reached
    /// it.
    pub public_url: Option<String>,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            prefix: String::new(),
            // nix-serve has the same priority.
            priority: 30,
            secret_key_files: Vec::new(),
            access: AccessConfig::default(),
            sign: Sign::default(),
            stored: Stored::default(),
            emit_ca: false,
            signs_realisations: false,
            coding: NarCoding::Identity,
            policy: PolicyConfig::default(),
            pages: Some(Pages::default()),
            retention: Retention::default(),
            quota: None,
            sources: Sources::default(),
            upstreams: None,
            upstream_budget: Duration::from_secs(2),
            upstream_down: WhenDown::default(),
            negative_ttl: Duration::from_secs(60),
        }
    }
}

/// Names of the program and its options in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// Name of the program, which begins each line of its error log.
    pub program: &'static str,
    is_nix_serve: bool,
}

impl Names {
    /// Names for nix-serve, with options such as `--tls-certificate`.
    pub const NIX_SERVE: Self = Self {
        program: "nix-serve",
        is_nix_serve: true,
    };

    /// Spells an option as the program does.
    pub fn option(&self, name: &str) -> String {
        let spec = OptionSpec::find(name).filter(|spec| self.is_nix_serve && spec.in_nix_serve);
        match spec {
            Some(spec) => format!("--{}", spec.option()),
            None => format!("`{name}`"),
        }
    }
}

impl Default for Names {
    /// Returns the names for `samovar`, with options such as `tls.certificate`.
    fn default() -> Self {
        Self {
            program: "samovar",
            is_nix_serve: false,
        }
    }
}
