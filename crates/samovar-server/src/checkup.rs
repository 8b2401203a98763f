//! Checks the set-up of a server without serving, for `samovar doctor`.
//!
//! Each finding states the problem and how to fix it.

mod files;
mod oidc;
mod remote;
mod storage;
mod upstreams;

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use samovar_cache::{NarCacheDirectory, Sign, load_key, newest_readable};
use samovar_nix::{PublicKey, StorePath};
use samovar_store::{Settings, Store};

use crate::config::{CacheSettings, Configuration};
use crate::listener::Bind;
use crate::server::{configured_unencrypted, root_faults, store_uri};
use crate::sys;

/// Minimum limit of file descriptors: each connection and each file being sent needs one
/// descriptor.
const DESCRIPTORS_MIN: u64 = 4096;

/// How to get a signing key.
const NEW_KEY: &str = "nix-store --store dummy:// --generate-binary-cache-key NAME SECRET-FILE \
                       PUBLIC-FILE, and add SECRET-FILE to secret-key-files";

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked, in one or two words.
    pub subject: &'static str,
    /// How serious the finding is.
    pub severity: Severity,
    /// What the check found.
    pub text: String,
    /// How to fix it; empty if there is no problem.
    pub fix: String,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The check found no problem.
    Ok,
    /// A problem that may be intended.
    Warning,
    /// A problem that prevents the server from working as configured.
    Error,
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds a finding without a problem.
    pub fn ok(&mut self, subject: &'static str, text: impl Into<String>) {
        self.add(subject, Severity::Ok, text.into(), String::new());
    }

    /// Adds a warning, and how to fix its cause.
    pub fn warning(
        &mut self,
        subject: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(subject, Severity::Warning, text.into(), fix.into());
    }

    /// Adds an error, and how to fix it.
    pub fn error(
        &mut self,
        subject: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(subject, Severity::Error, text.into(), fix.into());
    }

    /// Returns the highest severity among the findings.
    pub fn worst(&self) -> Severity {
        let severities = self.0.iter().map(|finding| finding.severity);
        severities.max().unwrap_or(Severity::Ok)
    }

    fn add(&mut self, subject: &'static str, severity: Severity, text: String, fix: String) {
        let finding = Finding {
            subject,
            severity,
            text,
            fix,
        };
        // The caches of a server may have the same fault.
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }
}

/// Parts of the set-up that the checks have opened, for further checks.
#[derive(Debug, Default)]
pub struct Examined {
    /// The opened store; `None` if it cannot be read.
    pub store: Option<Box<dyn Store>>,
    /// The caches, in the order of the configuration.
    pub caches: Vec<ExaminedCache>,
    /// DNS names of the certificates; wildcards begin with `*.`.
    pub certificate_names: Vec<String>,
}

/// A cache of the set-up, and what a client must find in it.
#[derive(Debug)]
pub struct ExaminedCache {
    /// URL path of the cache, without a trailing slash; empty for the root.
    pub prefix: String,
    /// The public keys of the keys with which narinfos are signed.
    pub keys: Vec<PublicKey>,
    /// Whether the keys sign every path.
    pub signs_all: bool,
    /// The newest path of the store that the policy allows; `None` if there is none.
    pub newest: Option<StorePath>,
    /// The newest uploaded path; `None` if there is none.
    pub uploaded: Option<StorePath>,
    /// URL of the cache for clients (`public-url`); `None` if it is not configured.
    pub public_url: Option<String>,
}

/// Checks everything that a server with this configuration needs. Permanently switches the process
/// to the configured user, because that user must be able to read the store.
pub fn examine(config: &Configuration, findings: &mut Findings) -> Examined {
    let keys: Vec<_> = config
        .caches
        .iter()
        .map(|cache| keys(cache, findings))
        .collect();
    remarks(config, findings);
    files::access(config, findings);
    let certificate_names = files::certificate(config, findings);
    descriptors(findings);
    listeners(config, findings);
    files::identity(config, findings);
    directories(config, findings);
    let mut uploaded = storage::examine(config, findings);
    let store = store(config, findings);
    if let Some(store) = &store {
        roots(config, &**store, findings);
    }
    daemon(config, store.as_deref(), findings);
    upstreams::examine(config, store.as_deref(), findings);
    oidc::examine(config, findings);
    let examined = |(cache, keys): (&CacheSettings, _)| ExaminedCache {
        prefix: cache.prefix.clone(),
        keys,
        signs_all: cache.sign == Sign::All,
        newest: store
            .as_deref()
            .and_then(|store| newest_readable(&cache.policy, store)),
        uploaded: uploaded.remove(cache.storage_name()),
        public_url: cache
            .pages
            .as_ref()
            .and_then(|pages| pages.public_url.clone()),
    };
    let caches = config.caches.iter().zip(keys).map(examined).collect();
    Examined {
        store,
        caches,
        certificate_names,
    }
}

/// Reports options that hardly do what was meant.
fn remarks(config: &Configuration, findings: &mut Findings) {
    for remark in &config.remarks {
        let fix = "correct the option; none needed if this is intended";
        findings.warning("configuration", remark, fix);
    }
    if let Some((fault, fix)) = configured_unencrypted(config) {
        findings.warning("listen", fault, fix);
    }
}

/// Checks the roots of policies. If a root is missing, fewer paths than intended are served, or
/// none.
fn roots(config: &Configuration, store: &dyn Store, findings: &mut Findings) {
    for fault in root_faults(&config.caches, store) {
        match fault.denies {
            true => findings.error("policy", fault.text, fault.fix),
            false => findings.warning("policy", fault.text, fault.fix),
        }
    }
}

/// Checks the signing keys of a cache. Returns the public keys.
fn keys(cache: &CacheSettings, findings: &mut Findings) -> Vec<PublicKey> {
    let mut keys = Vec::new();
    let name = match &*cache.name {
        "" => "the cache".to_owned(),
        name => format!("the cache {name}"),
    };
    if cache.secret_key_files.is_empty() {
        findings.warning(
            "key",
            format!("{name} has no signing key: clients accept only paths signed by others"),
            NEW_KEY,
        );
    }
    for path in &cache.secret_key_files {
        match load_key(path) {
            Ok(loaded) => {
                for warning in &loaded.warnings {
                    let (fault, fix) = split(warning, NEW_KEY);
                    findings.warning("key", fault, fix);
                }
                let public = loaded.key.public();
                findings.ok("key", format!("{name} signs with {public}"));
                keys.push(public);
            }
            Err(error) => {
                let message = error.to_string();
                let (fault, fix) = split(&message, NEW_KEY);
                findings.error("key", fault, fix);
            }
        }
    }
    keys
}

fn descriptors(findings: &mut Findings) {
    let limit = getrlimit(Resource::Nofile).maximum;
    match limit {
        Some(limit) if limit < DESCRIPTORS_MIN => findings.warning(
            "limits",
            format!("the limit of {limit} file descriptors is low: each connection needs one"),
            "LimitNOFILE=524288 in the unit, or ulimit -Hn 524288",
        ),
        Some(limit) => findings.ok("limits", format!("{limit} file descriptors")),
        None => findings.ok("limits", "file descriptors without a limit"),
    }
}

fn listeners(config: &Configuration, findings: &mut Findings) {
    for spec in &config.listeners {
        match spec.resolve() {
            Ok(Bind::Unix(path)) => unix(&path, findings),
            Ok(Bind::FirstOf(addresses) | Bind::EachOf(addresses)) => {
                let is_only = addresses.len() == 1;
                for address in addresses {
                    tcp(address.address, is_only, findings);
                }
            }
            Err(error) => findings.error(
                "listen",
                format!("{error:#}"),
                "set another address in listen",
            ),
        }
    }
}

/// Checks one address of a listener.
fn tcp(address: std::net::SocketAddr, is_only: bool, findings: &mut Findings) {
    match TcpListener::bind(address) {
        Ok(_) => findings.ok("listen", format!("{address} is available")),
        Err(error) => match error.kind() {
            io::ErrorKind::AddrInUse => findings.ok(
                "listen",
                format!("{address} is in use, by the running server or another program"),
            ),
            io::ErrorKind::PermissionDenied => findings.error(
                "listen",
                format!("this user may not listen on {address}"),
                "choose a port of at least 1024, or grant the server CAP_NET_BIND_SERVICE",
            ),
            // On a machine without IPv6, for example, the server listens on the other addresses.
            io::ErrorKind::AddrNotAvailable if !is_only => {}
            io::ErrorKind::AddrNotAvailable => findings.error(
                "listen",
                format!("this machine has no address {}", address.ip()),
                "set another address in listen",
            ),
            _ => {}
        },
    }
}

fn unix(path: &Path, findings: &mut Findings) {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if UnixStream::connect(path).is_ok() {
        findings.ok("listen", format!("a server listens on {path:?}"));
    } else if !directory.is_dir() {
        findings.error(
            "listen",
            format!("the directory {directory:?} of the socket does not exist"),
            "create it, or set RuntimeDirectory= in the unit",
        );
    } else {
        findings.ok("listen", format!("{path:?} is available"));
    }
}

fn directories(config: &Configuration, findings: &mut Findings) {
    if let Some(directory) = &config.nar_cache {
        let size = config.nar_cache_size.and_then(NonZeroU64::new);
        match NarCacheDirectory::open(directory, size.map(NonZeroU64::get)) {
            Ok(_) => findings.ok(
                "directories",
                format!("the NAR cache {directory:?} is writable"),
            ),
            Err(error) => findings.error(
                "directories",
                format!("cannot use {directory:?} as the NAR cache: {error}"),
                "set nar-cache.directory to a directory on a disk that this user can write to",
            ),
        }
    }
    if let Some(directory) = &config.state_directory {
        match tempfile_in(directory) {
            Ok(()) => findings.ok("directories", format!("{directory:?} is writable")),
            Err(error) => findings.error(
                "directories",
                format!("the state directory {directory:?} is not writable: {error}"),
                "set state-directory to a directory that this user can write to",
            ),
        }
    }
}

/// Splits a message "fault: fix". `other_fix`: the fix for a message that has none.
fn split<'a>(message: &'a str, other_fix: &'a str) -> (&'a str, &'a str) {
    message.rsplit_once(": ").unwrap_or((message, other_fix))
}

/// Creates a temporary file in the directory and removes it immediately.
fn tempfile_in(directory: &Path) -> io::Result<()> {
    match sys::unnamed_file(directory) {
        // NFS and FUSE have no unnamed files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = directory.join(format!(".samovar-doctor-{}", std::process::id()));
            File::create_new(&path)?;
            fs::remove_file(path)
        }
        opened => Ok(opened.map(drop)?),
    }
}

/// How to give the server a store that it can read.
const STORE_FIX: &str = "start nix-daemon, or let the server's user read the database and the \
                         files of the store; to serve another store, set the option `store`";

fn store(config: &Configuration, findings: &mut Findings) -> Option<Box<dyn Store>> {
    let opened = Settings::from_process()
        .map_err(anyhow::Error::new)
        .and_then(|settings| {
            let uri = store_uri(config, &settings);
            let store = samovar_store::open(uri, &settings)?;
            Ok((store, settings.use_sqlite_wal, uri == Some("none")))
        });
    let (store, expects_wal, is_none) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            findings.error("store", format!("{error:#}"), STORE_FIX);
            return None;
        }
    };
    if is_none {
        findings.ok("store", "there is none: only uploaded paths are served");
        return Some(store);
    }
    if let Some(remark) = store.take_schema_warning() {
        findings.warning(
            "store",
            remark.to_string(),
            "upgrade Samovar, if there is a version that supports this schema",
        );
    }
    match store.newest(None, 1) {
        Ok(paths) if paths.is_empty() => findings.warning(
            "store",
            format!("{} holds no paths", store.store_dir()),
            "none needed for a new store; otherwise set the option `store` to another one",
        ),
        Ok(_) => findings.ok("store", format!("{} is readable", store.store_dir())),
        Err(error) => {
            findings.error("store", error.to_string(), STORE_FIX);
            return None;
        }
    }
    // An error means that the daemon answers in place of the database.
    match (store.uses_wal(), expects_wal) {
        (Ok(Some(true)), true) => findings.ok("store", "its database is in WAL mode"),
        (Ok(Some(false)), false) => findings.ok(
            "store",
            "its database is not in WAL mode, as use-sqlite-wal = false requires",
        ),
        (Ok(Some(false)), true) => findings.warning(
            "store",
            "its database is not in WAL mode: if Nix runs with use-sqlite-wal = false, the server \
             does not see the locks of Nix",
            "if Nix runs with use-sqlite-wal = false, set that in the nix.conf or NIX_CONFIG of \
             the server too; otherwise run any Nix command, which turns WAL mode on",
        ),
        (Ok(Some(true)), false) => findings.warning(
            "store",
            "its database is in WAL mode, although use-sqlite-wal = false",
            "remove use-sqlite-wal from the nix.conf or NIX_CONFIG of the server",
        ),
        (Ok(None) | Err(_), _) => {}
    }
    Some(store)
}

/// Checks the daemon of the store. `store`: `None` if the store cannot be read.
fn daemon(config: &Configuration, store: Option<&dyn Store>, findings: &mut Findings) {
    if config.gc_lease == Some(Duration::ZERO) {
        return;
    }
    let Some(daemon) = store.and_then(Store::daemon) else {
        return;
    };
    let socket = daemon.socket();
    match UnixStream::connect(socket) {
        Ok(_) => findings.ok(
            "daemon",
            "nix-daemon protects paths that are being sent from garbage collection",
        ),
        Err(error) => findings.warning(
            "daemon",
            format!(
                "nix-daemon does not answer at {socket:?} ({error}): paths that are being sent \
                 are not protected from garbage collection"
            ),
            "start nix-daemon.socket and let this user connect (allowed-users in nix.conf)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_may_lack_one_of_several_addresses() {
        // RFC 5737 reserves this address for documentation.
        let absent = "192.0.2.1:0".parse().expect("an address");
        let worst = |is_only| {
            let mut findings = Findings::default();
            tcp(absent, is_only, &mut findings);
            findings.worst()
        };
        assert_eq!(worst(true), Severity::Error);
        assert_eq!(worst(false), Severity::Ok);
    }
}
