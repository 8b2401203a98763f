//! What the command line says, in types.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use samovar_server::config::{ClientAddress, HoldTime, LogForm, LogTarget, TimeLimit, Tls, Verify};
use samovar_server::listener::{Host, ListenSpec, PORT_DEFAULT};

/// The options of a server that is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What to listen on, in the order given, each once; never empty. `--listen` before `--socket`
    /// before `--host` and `--port`. Default: every address, port 5000.
    pub listeners: Vec<ListenSpec>,
    /// Whether one of the options that make up `listeners` was given.
    pub listen_given: bool,
    /// HTTPS, and on which of them. Default: none.
    pub tls: Option<Tls>,
    /// Connections that may wait to be accepted, for each listener. Default 1024; 0 stands for it.
    pub backlog: u32,
    /// Threads for blocking work, at most [`WORKERS_MAX`](samovar_server::config::WORKERS_MAX). `None`, also for 0: as many as
    /// the server thinks right.
    pub workers: Option<NonZeroU32>,
    /// Requests after which a connection is closed. Where starman counts them for a worker process,
    /// which serves one connection at a time. `None`, also for 0: no limit.
    pub max_requests: Option<NonZeroU64>,
    /// Whether connections serve more than one request. Default true.
    pub keepalive: bool,
    /// How long a connection may be idle between requests; zero closes it after each. Default: the
    /// server's.
    pub keepalive_timeout: Option<Duration>,
    /// Time from the first byte, or from accepting, to the whole request head. Default: the
    /// server's.
    pub read_timeout: TimeLimit,
    /// nix-serve-ng's `--timeout`: time without progress after which a connection is closed.
    /// Default: the server's.
    pub timeout: TimeLimit,
    /// Name or number of the user to become once the sockets are bound. Default: stay.
    pub user: Option<String>,
    /// Name or number of the group to become. Default: the user's.
    pub group: Option<String>,
    /// File for the process's number. Default: none.
    pub pid_file: Option<PathBuf>,
    /// Go to the background once ready. Default false.
    pub daemonize: bool,
    /// File for what is otherwise written to standard error.
    pub error_log: Option<PathBuf>,
    /// `--access-log`. Ask [`Options::access_log_target`], which knows the other options too.
    pub access_log: Option<LogTarget>,
    /// nix-serve-ng's `--quiet`, `--verbose`, `--log-format`; the last one counts. Default: none
    /// given.
    pub log_format: Option<LogFormat>,
    /// URL path under which the cache is found, without a slash at its end, not decoded; empty for
    /// the root, which is the default. Everything outside is not found.
    pub path_prefix: String,
    /// `Priority` in `nix-cache-info`, at most 2147483647: clients read it into a C `int`. Default:
    /// the server's, which is nix-serve's 30.
    pub priority: Option<u32>,
    /// Store URI. Default: `NIX_REMOTE`.
    pub store: Option<String>,
    /// Where NARs of many small files are kept. Default: `NIX_SERVE_NAR_CACHE`, or the service
    /// manager's `CACHE_DIRECTORY`, or `/var/tmp`.
    pub nar_cache: Option<PathBuf>,
    /// Bytes of them; 0 for none. Default: `NIX_SERVE_NAR_CACHE_SIZE`, or the cache's.
    pub nar_cache_size: Option<u64>,
    /// Whether, and for how long, paths are held against garbage collection. Default:
    /// `NIX_SERVE_HOLD`, or ten minutes if there is a daemon.
    pub hold: Option<HoldTime>,
    /// Which NARs are hashed on their way. Default: `NIX_SERVE_VERIFY`, or [`Verify::First`].
    pub verify: Option<Verify>,
    /// Where is written down what was found out about files. Default: `NIX_SERVE_STATE_DIRECTORY`,
    /// or the service manager's `STATE_DIRECTORY`, or nowhere.
    pub state_directory: Option<PathBuf>,
    /// Bytes verified in a second that nobody asks for; 0 for none. Default: `NIX_SERVE_SCRUB`, or
    /// none.
    pub scrub_rate: Option<u64>,
    /// What metrics and status are served on. Default: `NIX_SERVE_ADMIN`, or nothing.
    pub admin: Option<ListenSpec>,
    /// Whether there are pages for people. Default: `NIX_SERVE_PAGES`, or false.
    pub pages: bool,
}

impl Options {
    /// Where requests are logged, if anywhere.
    ///
    /// As in nix-serve, nowhere without `--access-log`; nix-serve-ng logs to standard output by
    /// default, and here if one of its options asks for it.
    pub fn access_log_target(&self) -> Option<LogTarget> {
        let by_format = match self.log_format {
            None | Some(LogFormat::Quiet) => None,
            Some(_) => Some(LogTarget::StandardOutput),
        };
        self.access_log.clone().or(by_format)
    }

    /// Whose address stands in the access log.
    pub fn client_address(&self) -> ClientAddress {
        match self.log_format {
            Some(LogFormat::RealIp) => ClientAddress::Unproven,
            _ => ClientAddress::Peer,
        }
    }

    /// How requests are logged.
    pub fn access_log_form(&self) -> LogForm {
        match self.log_format {
            Some(LogFormat::Json) => LogForm::Json,
            _ => LogForm::Combined,
        }
    }

    /// Whether detail was asked for in the error log.
    pub fn is_verbose(&self) -> bool {
        matches!(self.log_format, Some(LogFormat::Verbose | LogFormat::Debug))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listeners: vec![ListenSpec::Tcp {
                host: Host::Any,
                port: PORT_DEFAULT,
            }],
            listen_given: false,
            tls: None,
            backlog: 1024,
            workers: None,
            max_requests: None,
            keepalive: true,
            keepalive_timeout: None,
            read_timeout: TimeLimit::Default,
            timeout: TimeLimit::Default,
            user: None,
            group: None,
            pid_file: None,
            daemonize: false,
            error_log: None,
            access_log: None,
            log_format: None,
            path_prefix: String::new(),
            priority: None,
            store: None,
            nar_cache: None,
            nar_cache_size: None,
            hold: None,
            verify: None,
            state_directory: None,
            scrub_rate: None,
            admin: None,
            pages: false,
        }
    }
}

/// nix-serve-ng's forms of its log. All that log write the same lines here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// No access log.
    Quiet,
    /// `default`, and `normal` as ng's help text calls it.
    Normal,
    /// With the address that a proxy names.
    RealIp,
    /// One JSON object a line; ours alone.
    Json,
    /// With detail in the error log.
    Verbose,
    /// The same as [`LogFormat::Verbose`].
    Debug,
}

impl LogFormat {
    /// Reads the value of `--log-format`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "quiet" => Self::Quiet,
            "default" | "normal" => Self::Normal,
            "real-ip" => Self::RealIp,
            "json" => Self::Json,
            "verbose" => Self::Verbose,
            "debug" => Self::Debug,
            _ => return None,
        })
    }
}
