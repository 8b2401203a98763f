//! Options of the server process.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use super::Set::{Count, Each, Path, Size, Switch, Text, Time, Word};
use super::Shown::{FirstWord, Value, ValueOr, Words};
use super::{OptionSpec, limit, seconds, server};
use crate::config::draft::{ServerDraft, listen};
use crate::config::{
    BACKLOG_MAX, CONNECTIONS_MAX, ClientAddress, GcLease, HEAD_LEN_MAX, HEAD_LEN_MIN, LogForm,
    LogTarget, QUEUE_LEN_MAX, STREAMS_MAX, Verify, WORKERS_MAX,
};

const LISTEN: &str = "a list of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of unix sockets";

pub(super) static OPTIONS: &[OptionSpec] = &[
    server(
        "listen",
        Each(LISTEN, |draft: &mut ServerDraft, values| {
            draft.config.listeners = listen(values).filter(|specs| !specs.is_empty())?;
            draft.config.listen_given = true;
            Some(())
        }),
        Value(|config| config.listeners[0].to_string()),
        Some("--listen"),
        "Addresses to listen on: HOST:PORT, [ADDRESS]:PORT, :PORT, or the path of a unix socket. \
         Sockets that a service manager passes replace the default, and are refused if they are \
         not among the addresses given here.",
    ),
    server(
        "backlog",
        Count(1, BACKLOG_MAX, |draft, count| {
            draft.config.backlog = to_u32(count)
        }),
        Value(|config| config.backlog.to_string()),
        Some("--backlog"),
        "Length of the accept queue of each listening socket.",
    ),
    server(
        "workers",
        Count(1, WORKERS_MAX, |draft, count| {
            draft.config.workers = NonZeroU32::new(to_u32(count));
        }),
        Words("by the number of cores"),
        Some("--workers"),
        "Worker threads, which run everything that may block.",
    ),
    server(
        "tls.certificate",
        Path(|draft, path| draft.certificate = Some(path)),
        Words("none: plain HTTP"),
        Some("--ssl-cert"),
        "PEM file with the server's certificate, followed by those of its issuers. Needs tls.key. \
         Read again on reload.",
    ),
    server(
        "tls.key",
        Path(|draft, path| draft.key = Some(path)),
        Words("none"),
        Some("--ssl-key"),
        "PEM file with the private key of tls.certificate. Read again on reload.",
    ),
    server(
        "tls.client-authorities",
        Path(|draft, path| draft.client_authorities = Some(path)),
        Words("none: client certificates are not requested"),
        None,
        "PEM file with the certificate authorities for client certificates. Which certificates may \
         read a cache is set by the options of access.certificates. Read again on reload.",
    ),
    server(
        "tls.client-certificates",
        Word(&["optional", "required"], |draft, word| {
            draft.client_required = word == "required";
        }),
        FirstWord,
        None,
        "Whether a TLS handshake without a client certificate succeeds (optional) or fails \
         (required).",
    ),
    server(
        "user",
        Text(|draft, text| draft.config.user = Some(text)),
        Words("the user who starts the server"),
        Some("--user"),
        "User to switch to, by name or number, once the sockets are bound.",
    ),
    server(
        "group",
        Text(|draft, text| draft.config.group = Some(text)),
        Words("the primary group of user"),
        Some("--group"),
        "Group to switch to, by name or number, once the sockets are bound.",
    ),
    server(
        "pid-file",
        Path(|draft, path| draft.config.pid_file = Some(path)),
        Words("none"),
        Some("--pid"),
        "PID file.",
    ),
    server(
        "store",
        Text(|draft, text| draft.config.store = Some(text)),
        Words("$NIX_REMOTE, or the store of this machine"),
        Some("--store"),
        "Nix store to serve, as a Nix store URI: a directory, local?root=…, or daemon.",
    ),
    server(
        "queue",
        Count(1, QUEUE_LEN_MAX, |draft, count| {
            draft.config.limits.queue_len_max = to_usize(count);
        }),
        Value(|config| limit(config).queue_len_max.to_string()),
        None,
        "Requests that may wait for a worker thread. Further requests are answered with 503.",
    ),
    server(
        "connections.max",
        Count(1, CONNECTIONS_MAX, |draft, count| {
            draft.config.limits.connections_max = to_usize(count);
        }),
        ValueOr(
            |config| limit(config).connections_max.to_string(),
            "or fewer if the limit of open files requires it",
        ),
        None,
        "Simultaneous connections. At the limit, an idle connection is closed for a new one; if \
         there is none, the new one is answered with 503.",
    ),
    server(
        "connections.head-size",
        Size(HEAD_LEN_MIN, HEAD_LEN_MAX, |draft, len| {
            draft.config.limits.head.head_len_max = to_usize(len);
        }),
        Value(|config| format!("{} KiB", limit(config).head.head_len_max / 1024)),
        None,
        "Size of a request head. Longer heads are answered with 431.",
    ),
    server(
        "connections.streams",
        Count(1, STREAMS_MAX, |draft, count| {
            draft.config.limits.http2.streams_max = to_u32(count);
        }),
        Value(|config| limit(config).http2.streams_max.to_string()),
        None,
        "Concurrent streams of an HTTP/2 connection. Further ones are refused with REFUSED_STREAM.",
    ),
    server(
        "connections.requests",
        Count(0, u64::MAX, |draft, count| {
            draft.config.limits.requests_per_connection_max = count;
        }),
        Words("0, no limit"),
        Some("--max-requests"),
        "Requests after which a connection is closed; 0 for no limit.",
    ),
    server(
        "connections.idle-time",
        Time(|draft, time| draft.config.limits.idle_time = time),
        Value(|config| seconds(limit(config).idle_time)),
        Some("--keepalive-timeout"),
        "Keep-alive time: how long a connection may be idle between requests; 0 closes it after \
         each response.",
    ),
    server(
        "connections.head-time",
        Time(|draft, time| draft.config.limits.head_time = or_never(time)),
        Value(|config| seconds(limit(config).head_time)),
        Some("--read-timeout"),
        "Time within which a request head must be complete, from its first byte or from accepting \
         the connection; 0 for no limit.",
    ),
    server(
        "connections.stall-time",
        Time(|draft, time| draft.config.limits.stall_time = or_never(time)),
        Value(|config| seconds(limit(config).stall_time)),
        Some("--timeout"),
        "Time without progress of a request or response body after which the connection is closed; \
         0 for no limit.",
    ),
    server(
        "nar-cache.directory",
        Path(|draft, path| draft.config.nar_cache = Some(path)),
        ValueOr(
            |config| format!("$CACHE_DIRECTORY, or {}", config.cache_directory.display()),
            "if that is on a disk",
        ),
        Some("--nar-cache"),
        "Directory of the NAR cache: NARs of trees with many small files, as unnamed files. \
         Should be on a disk, not in memory.",
    ),
    server(
        "nar-cache.size",
        Size(0, u64::MAX, |draft, len| {
            draft.config.nar_cache_size = Some(len)
        }),
        Words("1 GiB, or an eighth of the free space if that is less"),
        Some("--nar-cache-size"),
        "Size of the NAR cache; 0 turns it off.",
    ),
    server(
        "gc-lease",
        Time(|draft, time| draft.config.gc_lease = Some(GcLease::at_least_a_second(time))),
        ValueOr(
            |_| seconds(GcLease::TIME_DEFAULT),
            "if a Nix daemon is running",
        ),
        Some("--gc-lease"),
        "GC lease: how long a path is kept from garbage collection after its narinfo was sent, at \
         least. Needs a Nix daemon. 0 turns leases off.",
    ),
    server(
        "verify",
        Word(&["first", "never"], |draft, word| {
            draft.config.verify = Verify::parse(word).unwrap_or_default();
        }),
        FirstWord,
        Some("--verify"),
        "Which NARs are hashed while they are sent: the first one of each path, or none.",
    ),
    server(
        "scrub",
        Size(0, u64::MAX, |draft, rate| {
            draft.config.scrub_rate = NonZeroU64::new(rate)
        }),
        Words("0"),
        Some("--scrub"),
        "Background verification of the store, in bytes per second; 0 turns it off.",
    ),
    server(
        "state-directory",
        Path(|draft, path| draft.config.state_directory = Some(path)),
        Words("$STATE_DIRECTORY, or none"),
        Some("--state-directory"),
        "Directory for verification records, which then survive a restart.",
    ),
    server(
        "log.errors",
        Path(|draft, path| draft.config.error_log = Some(path)),
        Words("standard error"),
        Some("--error-log"),
        "File of the error log. Reopened on reload.",
    ),
    server(
        "log.verbose",
        Switch(|draft, is_on| draft.config.is_verbose = is_on),
        Value(|config| config.is_verbose.to_string()),
        Some("--verbose"),
        "Whether the error log includes debug messages.",
    ),
    server(
        "log.access",
        Path(|draft, path| {
            draft.config.access_log = Some(match path.as_os_str() == "-" {
                true => LogTarget::StandardOutput,
                false => LogTarget::File(path),
            });
        }),
        Words("none"),
        Some("--access-log"),
        "File of the access log, one line for each request; - for standard output. Reopened on \
         reload.",
    ),
    server(
        "log.access-format",
        Word(&["combined", "json"], |draft, word| {
            draft.config.access_log_format = match word {
                "json" => LogForm::Json,
                _ => LogForm::Combined,
            };
        }),
        FirstWord,
        Some("--log-format"),
        "Format of the access log: Apache's combined format, or one JSON object for each request.",
    ),
    server(
        "log.client-address",
        Word(&["peer", "forwarded"], |draft, word| {
            draft.config.client_address = match word {
                "forwarded" => ClientAddress::Forwarded,
                _ => ClientAddress::Peer,
            };
        }),
        FirstWord,
        Some("--log-format real-ip"),
        "Client address in the access log: that of the connection's peer, or the one that a proxy \
         of access.trusted-proxies reports in access.forwarded-header.",
    ),
    server(
        "admin.listen",
        Each(LISTEN, |draft, values| {
            draft.config.admin.listeners = listen(values)?;
            draft.config.admin.is_default = false;
            Some(())
        }),
        Value(|config| config.admin.listeners[0].to_string()),
        Some("--admin"),
        "Addresses for metrics and status, over plain HTTP: /metrics, /healthz, /readyz, /version \
         and /status. An empty list turns them off. Every client that reaches them sees what is \
         requested and by whom.",
    ),
    server(
        "admin.top-paths",
        Switch(|draft, is_on| draft.config.admin.has_top_paths = is_on),
        Value(|config| config.admin.has_top_paths.to_string()),
        None,
        "Whether /metrics names the most requested store paths in labels. /status always shows \
         them.",
    ),
];

fn or_never(time: Duration) -> Duration {
    match time.is_zero() {
        true => Duration::MAX,
        false => time,
    }
}

/// For counts whose declared bound fits.
fn to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
