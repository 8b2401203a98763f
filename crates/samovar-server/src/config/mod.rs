//! What a server is to do, in types. Where it comes from, a command line or a file, is the
//! business of the programs.

mod access;
mod harmonia;
mod keys;
mod kinds;
mod nearest;
mod read;
mod rules;
mod settings;
mod toml;
mod unit;
pub mod value;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use samovar_cache::access::AccessConfig;
use samovar_cache::{PolicyConfig, Sign, Stored};

pub use harmonia::import_harmonia;
pub use keys::{KEYS, Key, Kind, Scope, VARIABLE_PREFIX};
pub use kinds::{
    ClientAddress, ClientAuthority, HoldTime, LogForm, LogTarget, TimeLimit, Tls, Verify,
};

pub use nearest::nearest;
pub use read::{read, show};
pub use settings::{ConfigError, Origin, Setting, Settings};
pub use toml::Value;

use crate::listener::{ADMIN_PORT_DEFAULT, Host, ListenSpec, PORT_DEFAULT};

/// Everything about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// What its parts are called where they were written.
    pub names: Names,
    /// What to listen on, in the order given, each once; never empty. Default: every address, port
    /// 5000.
    pub listeners: Vec<ListenSpec>,
    /// Whether `listeners` was configured: sockets of the service manager must then be within it.
    pub listen_given: bool,
    /// HTTPS, and on which of them. Default: none.
    pub tls: Option<Tls>,
    /// Connections that may wait to be accepted, for each listener. Default 1024.
    pub backlog: u32,
    /// Threads for blocking work. `None`: as many as the server thinks right.
    pub workers: Option<NonZeroU32>,
    /// Limits of a connection.
    pub connections: Connections,
    /// Name or number of the user to become once the sockets are bound. Default: stay.
    pub user: Option<String>,
    /// Name or number of the group to become. Default: the user's.
    pub group: Option<String>,
    /// File for the process's number. Default: none.
    pub pid_file: Option<PathBuf>,
    /// File for what is otherwise written to standard error.
    pub error_log: Option<PathBuf>,
    /// Whether detail is written there. Default false.
    pub is_verbose: bool,
    /// Where requests are logged. Default: nowhere.
    pub access_log: Option<LogTarget>,
    /// How they are written. Default: Apache's combined format.
    pub access_log_format: LogForm,
    /// Whose address stands there.
    pub client_address: ClientAddress,
    /// Metrics and status.
    pub admin: AdminSettings,
    /// Store URI. Default: `NIX_REMOTE`.
    pub store: Option<String>,
    /// Where NARs of many small files are kept. Default: [`Self::cache_directory`].
    pub nar_cache: Option<PathBuf>,
    /// Where they are if nobody said so, and if that is on a disk that can be written to.
    pub cache_directory: PathBuf,
    /// Bytes of them; 0 for none. Default: the cache's.
    pub nar_cache_size: Option<u64>,
    /// Whether, and for how long, paths are held against garbage collection. Default: ten minutes
    /// if there is a daemon.
    pub hold: Option<HoldTime>,
    /// Which NARs are hashed on their way.
    pub verify: Verify,
    /// Where is written down what was found out about files. Default: nowhere.
    pub state_directory: Option<PathBuf>,
    /// Bytes verified in a second that nobody asks for. Default: none.
    pub scrub_rate: Option<NonZeroU64>,
    /// The caches, each at a URL path of its own; never empty.
    pub caches: Vec<CacheSettings>,
    /// Remarks about where all this was written, one line each, to be printed once.
    pub remarks: Vec<String>,
}

/// Greatest priority: clients read it into a C `int`.
pub const PRIORITY_MAX: u32 = 2_147_483_647;

/// The most workers that can be asked for. Each is a thread; beyond this the number is a mistake.
pub const WORKERS_MAX: u32 = 1024;

/// The most connections that can be asked for: descriptors end before.
pub const CONNECTIONS_MAX: u32 = 1_000_000;

/// The most requests on a connection of HTTP/2 that can be asked for.
pub const STREAMS_MAX: u32 = 10_000;

/// The most requests in the queue that can be asked for: each may hold a body.
pub const QUEUE_LEN_MAX: u32 = 1_000_000;

/// The shortest head that can be asked for: clients send as much with a token and a long name.
pub const HEAD_LEN_MIN: u64 = 1024;

/// The longest head that can be asked for: what a thread reads at once.
pub const HEAD_LEN_MAX: u64 = 64 * 1024;

impl Default for Configuration {
    fn default() -> Self {
        Self {
            names: Names::default(),
            listeners: vec![ListenSpec::Tcp {
                host: Host::Any,
                port: PORT_DEFAULT,
            }],
            listen_given: false,
            tls: None,
            backlog: 1024,
            workers: None,
            connections: Connections::default(),
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
            // Survives a restart of the machine, so it is on a disk: what is there takes no memory.
            cache_directory: PathBuf::from("/var/tmp"),
            nar_cache_size: None,
            hold: None,
            verify: Verify::First,
            state_directory: None,
            scrub_rate: None,
            caches: vec![CacheSettings::default()],
            remarks: Vec::new(),
        }
    }
}

/// Metrics, health and status, on a server of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminSettings {
    /// What it listens on; nothing, and there is none of it. Default: what this machine alone
    /// reaches, port 5001.
    pub listeners: Vec<ListenSpec>,
    /// Whether nobody asked for them, so that the server does without if they cannot be had.
    pub is_default: bool,
    /// Whether the paths most asked for are labels of metrics. Default false.
    pub has_top_paths: bool,
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self {
            listeners: vec![ListenSpec::local(ADMIN_PORT_DEFAULT)],
            is_default: true,
            has_top_paths: false,
        }
    }
}

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// What it is called; empty if it is the only one.
    pub name: String,
    /// URL path under which it is found, without a slash at its end, not decoded; empty for the
    /// root.
    pub prefix: String,
    /// `Priority` in `nix-cache-info`, at most [`PRIORITY_MAX`].
    pub priority: u32,
    /// Files of the keys to sign with. An empty path is an error at start: serving unsigned where a
    /// key was meant would be worse.
    pub secret_key_files: Vec<PathBuf>,
    /// Who may read it. Default: everybody.
    pub access: AccessConfig,
    /// What they sign.
    pub sign: Sign,
    /// What becomes of stored signatures.
    pub stored: Stored,
    /// Whether content addresses are said.
    pub emit_ca: bool,
    /// Whether realisations are signed.
    pub signs_realisations: bool,
    /// What may be read.
    pub policy: PolicyConfig,
    /// What its pages for people say of it; `None`: it has none. Default: there are, with
    /// nothing of its own.
    pub pages: Option<Pages>,
}

/// What the pages of a cache say of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages {
    /// What they call it; empty for the name of the program.
    pub title: String,
    /// A sentence or two; may be empty.
    pub description: String,
    /// The URL that clients shall use.
    pub public_url: Option<String>,
}

impl CacheSettings {
    /// nix-serve's priority.
    pub const PRIORITY_DEFAULT: u32 = 30;
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            prefix: String::new(),
            priority: Self::PRIORITY_DEFAULT,
            secret_key_files: Vec::new(),
            access: AccessConfig::default(),
            sign: Sign::default(),
            stored: Stored::default(),
            emit_ca: false,
            signs_realisations: false,
            policy: PolicyConfig::default(),
            pages: Some(Pages::default()),
        }
    }
}

/// What a message calls the setting that mends something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The program.
    pub program: &'static str,
    /// [`Tls::certificate`].
    pub certificate: &'static str,
    /// [`Tls::key`].
    pub certificate_key: &'static str,
    /// The port of a listener.
    pub port: &'static str,
    /// The address of a listener.
    pub address: &'static str,
    /// The listeners of metrics and status.
    pub admin: &'static str,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            program: "samovar",
            certificate: "--tls-certificate",
            certificate_key: "--tls-key",
            port: "--listen",
            address: "--listen",
            admin: "--admin-listen",
        }
    }
}

/// Limits of a connection; where none is given, the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Requests after which one is closed. `None`: no limit.
    pub requests_max: Option<NonZeroU64>,
    /// Whether they serve more than one request. Default true.
    pub is_kept: bool,
    /// How long one may be idle between requests; zero closes it after each.
    pub idle_time: Option<Duration>,
    /// Time from the first byte, or from accepting, to the whole request head.
    pub head_time: TimeLimit,
    /// Time without progress after which one is closed.
    pub stall_time: TimeLimit,
    /// How many there may be at once.
    pub count_max: Option<usize>,
    /// Bytes of a request head.
    pub head_len_max: Option<usize>,
    /// Requests at once on one that speaks HTTP/2.
    pub streams_max: Option<u32>,
    /// Requests of all of them that may wait for a worker.
    pub queue_len_max: Option<usize>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            requests_max: None,
            is_kept: true,
            idle_time: None,
            head_time: TimeLimit::Default,
            stall_time: TimeLimit::Default,
            count_max: None,
            head_len_max: None,
            streams_max: None,
            queue_len_max: None,
        }
    }
}
