//! Options of the server process.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use samovar_upstream::settings::UpstreamSettings;

use super::Set::{Certificates, Count, Each, Path, Size, Switch, Text, Time, Urls, Word};
use super::Shown::{Effective, Value, ValueOr, Words};
use super::{Row, seconds, server};
use crate::config::draft::{ServerDraft, listen};
use crate::config::{
    BACKLOG_MAX, CONNECTIONS_MAX, ClientAddress, GC_LEASE_TIME_DEFAULT, GC_LEASE_TIME_MIN,
    HEAD_LEN_MAX, HEAD_LEN_MIN, LogForm, QUEUE_LEN_MAX, STREAMS_MAX, UPSTREAM_MEMORY_LEN_MIN,
    Value as Toml, WORKERS_MAX,
};

const LISTEN: &str = "a list of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of unix sockets";

pub(in crate::config) static OPTIONS: &[Row<ServerDraft>] = &[
    server(
        "listen",
        Each(LISTEN, |draft: &mut ServerDraft, values| {
            draft.config.listeners = listen(values).filter(|specs| !specs.is_empty())?;
            draft.config.listen_given = true;
            Some(())
        }),
        "Addresses to listen on: HOST:PORT, [ADDRESS]:PORT, :PORT, or the path of a unix socket. \
         If a service manager passes sockets, the server listens on those instead of the default. \
         If addresses are given here, each passed socket must have one of them; otherwise the \
         server does not start.",
    )
    .defaults_to(Value(|config| config.listeners[0].to_string()))
    .nix_serve(&[])
    .replaces(&["host", "port", "socket"]),
    server(
        "backlog",
        Count(1, BACKLOG_MAX, |draft, count| {
            draft.config.backlog = to_u32(count)
        }),
        "Length of the accept queue of each listening socket.",
    )
    .defaults_to(Value(|config| config.backlog.to_string()))
    .nix_serve(&[]),
    server(
        "workers",
        Count(1, WORKERS_MAX, |draft, count| {
            draft.config.workers = NonZeroU32::new(to_u32(count));
        }),
        "Number of worker threads, which run all operations that may block.",
    )
    .defaults_to(Effective("by the number of cores", |config| {
        Some(config.worker_count().to_string())
    }))
    .nix_serve(&[]),
    server(
        "tls.certificate",
        Path(|draft, path| draft.certificate = Some(path)),
        "PEM file with the server's certificate, followed by the certificates of its issuers. \
         Needs tls.key. Read again on reload.",
    )
    .defaults_to(Words("none: plain HTTP"))
    .nix_serve(&["ssl-cert"]),
    server(
        "tls.key",
        Path(|draft, path| draft.key = Some(path)),
        "PEM file with the private key of tls.certificate. Read again on reload.",
    )
    .nix_serve(&["ssl-key"]),
    server(
        "tls.certificates",
        Certificates(|draft: &mut ServerDraft, certificates| draft.certificates = certificates),
        "Further certificates of the server, selected by the name that a client requests (SNI). An \
         entry is a table with certificate and key, two files like those of tls.certificate and \
         tls.key. Clients that request no name, or one that no certificate has, get \
         tls.certificate, or the first entry if it is not set. No two certificates may have the \
         same name. The files are read again on reload, all or none.",
    ),
    server(
        "tls.client-authorities",
        Path(|draft, path| draft.client_authorities = Some(path)),
        "PEM file with the certificate authorities for client certificates. Which certificates may \
         read a cache is set by the options of access.certificates. Read again on reload.",
    )
    .defaults_to(Words("none: client certificates are not requested")),
    server(
        "tls.client-certificates",
        Word(&["optional", "required"], |draft, word| {
            draft.client_required = word == "required";
        }),
        "Whether a TLS handshake without a client certificate succeeds (optional) or fails \
         (required).",
    ),
    server(
        "user",
        Text(|draft, text| draft.config.user = Some(text)),
        "User to switch to, by name or number, once the sockets are bound.",
    )
    .defaults_to(Words("the user who starts the server"))
    .nix_serve(&[]),
    server(
        "group",
        Text(|draft, text| draft.config.group = Some(text)),
        "Group to switch to, by name or number, once the sockets are bound.",
    )
    .defaults_to(Words("the primary group of user"))
    .nix_serve(&[]),
    server(
        "pid-file",
        Path(|draft, path| draft.config.pid_file = Some(path)),
        "PID file.",
    )
    .nix_serve(&["pid"]),
    server(
        "store",
        Text(|draft, text| draft.config.store = Some(text)),
        "Nix store to serve, as a Nix store URI: a directory, local?root=…, or daemon; none for a \
         server of uploaded paths only.",
    )
    .defaults_to(Words(
        "$NIX_REMOTE, or the store of this machine; none if there is no store, but a storage",
    ))
    .nix_serve(&[]),
    server(
        "queue",
        Count(1, QUEUE_LEN_MAX, |draft, count| {
            draft.config.limits.queue_len_max = to_usize(count);
        }),
        "Requests that may wait for a worker thread. Further requests are answered with 503.",
    )
    .defaults_to(Value(|config| config.limits.queue_len_max.to_string())),
    server(
        "connections.max",
        Count(1, CONNECTIONS_MAX, |draft, count| {
            draft.config.limits.connections_max = to_usize(count);
        }),
        "Simultaneous connections. At the limit, an idle connection is closed for a new one; if \
         none is idle, the new connection is answered with 503.",
    )
    .defaults_to(ValueOr(
        |config| config.limits.connections_max.to_string(),
        "or fewer if the limit of open files requires it",
    )),
    server(
        "connections.head-size",
        Size(HEAD_LEN_MIN, HEAD_LEN_MAX, |draft, len| {
            draft.config.limits.head.head_len_max = to_usize(len);
        }),
        "Size of a request head. Longer heads are answered with 431.",
    )
    .defaults_to(Value(|config| {
        format!("{} KiB", config.limits.head.head_len_max / 1024)
    })),
    server(
        "connections.streams",
        Count(1, STREAMS_MAX, |draft, count| {
            draft.config.limits.streams_max = to_u32(count);
        }),
        "Concurrent streams of an HTTP/2 connection. Further streams are refused with \
         REFUSED_STREAM.",
    )
    .defaults_to(Value(|config| config.limits.streams_max.to_string())),
    server(
        "connections.requests",
        Count(0, u64::MAX, |draft, count| {
            draft.config.limits.requests_per_connection_max = count;
        }),
        "Requests after which a connection is closed; 0 for no limit.",
    )
    .defaults_to(ValueOr(|_| "0".to_owned(), "no limit"))
    .nix_serve(&["max-requests"]),
    server(
        "connections.idle-time",
        Time(|draft, time| draft.config.limits.idle_time = time),
        "Keep-alive time: how long a connection may be idle between requests; 0 closes it after \
         each response.",
    )
    .defaults_to(Value(|config| seconds(config.limits.idle_time)))
    .nix_serve(&["keepalive-timeout"])
    .replaces(&["keepalive"]),
    server(
        "connections.head-time",
        Time(|draft, time| draft.config.limits.head_time = or_never(time)),
        "Time within which a request head must be complete, from its first byte or from accepting \
         the connection; 0 for no limit.",
    )
    .defaults_to(Value(|config| seconds(config.limits.head_time)))
    .nix_serve(&["read-timeout"]),
    server(
        "connections.stall-time",
        Time(|draft, time| draft.config.limits.stall_time = or_never(time)),
        "Time without progress of a request or response body after which the connection is closed; \
         0 for no limit.",
    )
    .defaults_to(Value(|config| seconds(config.limits.stall_time)))
    .nix_serve(&[])
    .replaces(&["timeout"]),
    server(
        "nar-cache.directory",
        Path(|draft, path| draft.config.nar_cache = Some(path)),
        "Directory of the NAR cache, which stores NARs of many small files in unnamed temporary \
         files. Should be on a disk, not in memory.",
    )
    .defaults_to(Effective(
        "$CACHE_DIRECTORY, or /var/tmp, if that is on a disk",
        |config| Some(config.cache_directory.display().to_string()),
    ))
    .nix_serve(&["nar-cache"]),
    server(
        "nar-cache.size",
        Size(0, u64::MAX, |draft, len| {
            draft.config.nar_cache_size = Some(len)
        }),
        "Size of the NAR cache; 0 turns it off.",
    )
    .defaults_to(Words(
        "1 GiB, or an eighth of the free space if that is less",
    ))
    .nix_serve(&[]),
    server(
        "narinfo-memory",
        Size(0, u64::MAX, |draft, len| {
            draft.config.narinfo_memory_len = to_usize(len);
        }),
        "Memory for the narinfos of all caches. Memory beyond 32 MiB holds compressed narinfos, \
         0.4 KiB each.",
    )
    .defaults_to(Value(|config| {
        format!("{} MiB", config.narinfo_memory_len >> 20)
    })),
    server(
        "gc-lease",
        Time(|draft, time| {
            let is_off = time.is_zero();
            let time = if is_off {
                time
            } else {
                time.max(GC_LEASE_TIME_MIN)
            };
            draft.config.gc_lease = Some(time);
        }),
        "GC lease: how long a path is kept from garbage collection after its narinfo was sent, at \
         least. Needs a Nix daemon. 0 turns leases off.",
    )
    .defaults_to(ValueOr(
        |_| seconds(GC_LEASE_TIME_DEFAULT),
        "if a Nix daemon is running",
    ))
    .nix_serve(&[]),
    server(
        "verify",
        Word(&["first", "never"], |draft, word| {
            draft.config.verifies_first = word == "first";
        }),
        "Which NARs are hashed while they are sent: the first NAR sent of each path, or none.",
    )
    .nix_serve(&[]),
    server(
        "scrub",
        Size(0, u64::MAX, |draft, rate| {
            draft.config.scrub_rate = NonZeroU64::new(rate)
        }),
        "Background verification of the store, in bytes per second; 0 turns it off.",
    )
    .defaults_to(Value(|_| "0".to_owned()))
    .nix_serve(&[]),
    server(
        "state-directory",
        Path(|draft, path| draft.config.state_directory = Some(path)),
        "Directory for verification records, which then survive a restart.",
    )
    .defaults_to(Effective("$STATE_DIRECTORY, or none", |config| {
        Some(config.state_directory.as_ref()?.display().to_string())
    }))
    .nix_serve(&[]),
    server(
        "storage",
        Path(|draft, path| draft.config.storage = Some(path)),
        "Directory for uploaded paths, created if it is missing. Clients with a token from \
         `samovar token create` push into it with nix copy.",
    )
    .defaults_to(Words("none: the cache is read-only")),
    server(
        "upstream",
        Urls(|draft, urls| {
            // Names follow once all upstreams are known.
            let unnamed = |url| UpstreamSettings::new(String::new(), url);
            draft.config.upstreams = urls.into_iter().map(unnamed).collect();
        }),
        "URLs of upstream caches: what the server itself lacks, it requests there and passes on. \
         The name of each is its host. The public key of cache.nixos.org is known; an upstream \
         with another key needs a table, [upstreams.NAME]. Takes effect on reload, too.",
    )
    .reloaded(),
    server(
        "upstream-memory",
        Size(UPSTREAM_MEMORY_LEN_MIN, u64::MAX, |draft, len| {
            draft.config.upstream_memory_len = to_usize(len);
        }),
        "Memory for the NARs of upstreams while they are passed on. Takes effect on reload, too.",
    )
    .defaults_to(Value(|config| {
        format!("{} MiB", config.upstream_memory_len >> 20)
    }))
    .reloaded(),
    server(
        "log.errors",
        Path(|draft, path| draft.config.error_log = Some(path)),
        "File of the error log. Reopened on reload.",
    )
    .defaults_to(Words("standard error"))
    .nix_serve(&["error-log"]),
    server(
        "log.verbose",
        Switch(|draft, is_on| draft.config.is_verbose = is_on),
        "Whether the error log includes debug messages.",
    )
    .defaults_to(Value(|config| config.is_verbose.to_string()))
    .nix_serve(&[])
    .replaces(&["verbose"]),
    server(
        "log.access",
        Path(|draft, path| draft.config.access_log = Some(path.into())),
        "File of the access log, one line for each request; - for standard output. Reopened on \
         reload.",
    )
    .nix_serve(&["access-log"])
    .replaces(&["quiet"]),
    server(
        "log.access-format",
        Word(&["combined", "json"], |draft, word| {
            draft.config.access_log_format = match word {
                "json" => LogForm::Json,
                _ => LogForm::Combined,
            };
        }),
        "Format of the access log: Apache's combined format, or one JSON object for each request.",
    )
    .nix_serve(&[])
    .replaces(&["log-format"]),
    server(
        "log.client-address",
        Word(&["peer", "forwarded"], |draft, word| {
            draft.config.client_address = match word {
                "forwarded" => ClientAddress::Forwarded,
                _ => ClientAddress::Peer,
            };
        }),
        "Client address in the access log: the address of the connection's peer, or the address \
         that a proxy of access.trusted-proxies reports in access.forwarded-header.",
    ),
    server(
        "admin.listen",
        Each(LISTEN, |draft, values| {
            // An empty text is an empty list, so that the command line can turn the server off.
            let is_empty = |value: &Toml| value.as_text() == Some("");
            draft.config.admin.listeners = match values {
                [only] if is_empty(only) => Vec::new(),
                _ => listen(values)?,
            };
            draft.config.admin.is_default = false;
            Some(())
        }),
        "Addresses for metrics and status, over plain HTTP: /metrics, /healthz, /readyz, /version \
         and /status. An empty list, or an empty text, turns them off. Every client that reaches \
         these addresses sees which paths are requested, and by which clients.",
    )
    .defaults_to(Value(|config| config.admin.listeners[0].to_string()))
    .nix_serve(&["admin"])
    .nix_serve_default("none"),
    server(
        "admin.top-paths",
        Switch(|draft, is_on| draft.config.admin.has_top_paths = is_on),
        "Whether /metrics names the most requested store paths in labels. /status always shows \
         them.",
    )
    .defaults_to(Value(|config| config.admin.has_top_paths.to_string())),
    server(
        "admin.on-cache",
        Switch(|draft, is_on| draft.config.admin.is_on_cache = is_on),
        "Whether the addresses in listen serve /metrics, to the clients that may read the cache at \
         /, and /health, /healthz and /readyz, to all clients.",
    )
    .defaults_to(Value(|config| config.admin.is_on_cache.to_string())),
];

fn or_never(time: Duration) -> Duration {
    match time.is_zero() {
        true => Duration::MAX,
        false => time,
    }
}

/// Converts a count whose declared maximum fits `u32`.
fn to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
