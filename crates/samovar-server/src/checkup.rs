//! What would keep a server from serving well, found without serving: for `samovar doctor`.
//!
//! Each finding names what is wrong and the line that mends it.

use std::io;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use samovar_cache::access::Access;
use samovar_cache::{KeptSpace, Rule, load_key};
use samovar_http::tls::TlsConfig;
use samovar_nix::PublicKey;
use samovar_store::{Settings, Store};

use crate::config::{Configuration, HoldTime};
use crate::daemon::Identity;
use crate::listener::{Bind, ListenSpec};

/// Fewer descriptors are a burden: each connection needs one, and files on their way do.
const DESCRIPTORS_MIN: u64 = 4096;

/// A certificate that ends sooner should have been renewed by now.
const RENEWAL_TIME: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about, in one word.
    pub subject: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub text: String,
    /// What mends it; empty where nothing has to be.
    pub mend: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// It may be meant so.
    Doubtful,
    /// Nobody can mean that.
    Broken,
}

/// All findings, as they come.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Something is as it should be.
    pub fn fine(&mut self, subject: &'static str, text: impl Into<String>) {
        self.add(subject, Verdict::Fine, text.into(), String::new());
    }

    /// Something may be meant so.
    pub fn doubtful(
        &mut self,
        subject: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(subject, Verdict::Doubtful, text.into(), mend.into());
    }

    /// Nobody can mean that.
    pub fn broken(
        &mut self,
        subject: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(subject, Verdict::Broken, text.into(), mend.into());
    }

    /// The worst of all.
    pub fn worst(&self) -> Verdict {
        let verdicts = self.0.iter().map(|finding| finding.verdict);
        verdicts.max().unwrap_or(Verdict::Fine)
    }

    fn add(&mut self, subject: &'static str, verdict: Verdict, text: String, mend: String) {
        self.0.push(Finding {
            subject,
            verdict,
            text,
            mend,
        });
    }
}

/// What was found out beside findings.
#[derive(Debug, Default)]
pub struct Examined {
    /// The keys that narinfos are signed with.
    pub keys: Vec<PublicKey>,
    /// The store, if it can be read.
    pub store: Option<Box<dyn Store>>,
}

/// Looks at everything that a server with this configuration would need. The process becomes the
/// configured user on the way, for good, since the store is to be read as that one.
pub fn examine(config: &Configuration, findings: &mut Findings) -> Examined {
    let keys = keys(config, findings);
    access(config, findings);
    certificate(config, findings);
    descriptors(findings);
    listeners(config, findings);
    identity(config, findings);
    directories(config, findings);
    let store = store(config, findings);
    roots(config, store.as_deref(), findings);
    daemon(config, findings);
    Examined { keys, store }
}

/// Who may read: without its files the server does not start.
fn access(config: &Configuration, findings: &mut Findings) {
    for cache in config.caches.iter().filter(|cache| !cache.access.is_open()) {
        match Access::new(cache.access.clone()) {
            Ok((_, warnings)) => {
                for warning in &warnings {
                    findings.doubtful("access", warning, "see what it says");
                }
                if warnings.is_empty() {
                    let prefix = &cache.prefix;
                    findings.fine("access", format!("the rules about {prefix}/ can be read"));
                }
            }
            Err(error) => findings.broken(
                "access",
                format!("{:#}", anyhow::Error::new(error)),
                "name another file or entry in access.…; `samovar password NAME` and `samovar \
                 token NAME` print lines of such files",
            ),
        }
    }
}

/// What may be read: where a root is not there, less is served than was meant, or nothing.
fn roots(config: &Configuration, store: Option<&dyn Store>, findings: &mut Findings) {
    // Of a store path it is the name that counts: its files may be elsewhere.
    let dir = store.map(|store| store.store_dir().as_str().to_owned());
    let is_in_store = |root: &Path| dir.as_ref().is_some_and(|dir| root.starts_with(dir));
    let is_absent = |root: &Path| !is_in_store(root) && is_absent(root);
    for cache in &config.caches {
        let prefix = &cache.prefix;
        let absent = |rules: &[Rule]| -> Vec<PathBuf> {
            let roots = rules.iter().flat_map(|rule| &rule.roots);
            roots.filter(|root| is_absent(root)).cloned().collect()
        };
        for root in absent(&cache.policy.deny) {
            findings.broken(
                "policy",
                format!(
                    "the root {root:?} in deny is not there: until it is, it is not known what \
                     must not be read, and {prefix}/ answers 503"
                ),
                format!("ls -l {root:?}, and make it, or take it out of deny"),
            );
        }
        for root in absent(&cache.policy.allow) {
            findings.doubtful(
                "policy",
                format!("the root {root:?} in allow is not there: it adds nothing to {prefix}/"),
                format!("ls -l {root:?}, and make it, or take it out of allow"),
            );
        }
    }
}

/// What cannot be looked at is another matter.
fn is_absent(path: &Path) -> bool {
    let seen = path.symlink_metadata();
    seen.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn keys(config: &Configuration, findings: &mut Findings) -> Vec<PublicKey> {
    let mut keys = Vec::new();
    for cache in &config.caches {
        let name = match &*cache.name {
            "" => "the cache".to_owned(),
            name => format!("the cache {name}"),
        };
        if cache.secret_key_files.is_empty() {
            findings.doubtful(
                "key",
                format!("{name} signs nothing: clients take what others have signed, only"),
                "nix-store --generate-binary-cache-key NAME SECRET-FILE PUBLIC-FILE, and name \
                 SECRET-FILE in secret-key-files",
            );
        }
        for path in &cache.secret_key_files {
            match load_key(path) {
                Ok(loaded) => {
                    for warning in loaded.warnings {
                        findings.doubtful("key", warning, "see what it says");
                    }
                    let public = loaded.key.public();
                    findings.fine("key", format!("{name} signs with {public}"));
                    keys.push(public);
                }
                Err(error) => findings.broken("key", error.to_string(), "see what it says"),
            }
        }
    }
    keys
}

fn certificate(config: &Configuration, findings: &mut Findings) {
    let Some(tls) = &config.tls else { return };
    let names = &config.names;
    let tls_config = match TlsConfig::files(&tls.certificate, &tls.key) {
        Ok(tls_config) => tls_config,
        Err(error) => {
            let error = anyhow::Error::new(error);
            let (certificate, key) = (names.certificate, names.certificate_key);
            findings.broken(
                "TLS",
                format!("{error:#}"),
                format!("give another {certificate} or {key}"),
            );
            return;
        }
    };
    let now = SystemTime::now();
    for certificate in tls_config.certificates() {
        let good_for = match certificate.names.is_empty() {
            true => "addresses only".to_owned(),
            false => certificate.names.join(", "),
        };
        let file = &tls.certificate;
        let mend = "renew it, and send the server HUP";
        if certificate.is_expired(now) {
            findings.broken(
                "TLS",
                format!("the certificate in {file:?} has expired"),
                mend,
            );
        } else if certificate.is_expired(now + RENEWAL_TIME) {
            let text = format!("the certificate in {file:?} expires within 14 days");
            findings.doubtful("TLS", text, mend);
        } else if certificate.not_before.is_some_and(|start| start > now) {
            let text = format!("the certificate in {file:?} is not valid yet");
            findings.broken("TLS", text, "set this machine's clock, or wait");
        } else {
            findings.fine("TLS", format!("a certificate for {good_for}"));
        }
    }
}

fn descriptors(findings: &mut Findings) {
    let limit = getrlimit(Resource::Nofile).maximum;
    match limit {
        Some(limit) if limit < DESCRIPTORS_MIN => findings.doubtful(
            "limits",
            format!("{limit} file descriptors at most: as many connections are too many"),
            "LimitNOFILE=524288 in the unit, or ulimit -Hn 524288",
        ),
        Some(limit) => findings.fine("limits", format!("{limit} file descriptors")),
        None => findings.fine("limits", "file descriptors without a limit"),
    }
}

fn listeners(config: &Configuration, findings: &mut Findings) {
    for spec in &config.listeners {
        match spec.resolve() {
            Ok(Bind::Unix(path)) => unix(&path, findings),
            Ok(Bind::FirstOf(addresses) | Bind::EachOf(addresses)) => {
                for address in addresses {
                    tcp(spec, address.address, findings);
                }
            }
            Err(error) => findings.broken(
                "listen",
                format!("{error:#}"),
                "choose another address in listen",
            ),
        }
    }
}

fn tcp(spec: &ListenSpec, address: std::net::SocketAddr, findings: &mut Findings) {
    match TcpListener::bind(address) {
        Ok(_) => findings.fine("listen", format!("{address} is free")),
        Err(error) => match error.kind() {
            io::ErrorKind::AddrInUse => findings.fine(
                "listen",
                format!("{address} is taken, by a server that runs or by somebody else"),
            ),
            io::ErrorKind::PermissionDenied => findings.broken(
                "listen",
                format!("this user may not listen on {address}"),
                "choose a port from 1024 on, or give the server CAP_NET_BIND_SERVICE",
            ),
            // IPv6 is missing, say: the server takes what there is.
            io::ErrorKind::AddrNotAvailable if !matches!(spec, ListenSpec::Tcp { .. }) => {}
            io::ErrorKind::AddrNotAvailable => findings.broken(
                "listen",
                format!("this machine has no address {}", address.ip()),
                "choose another address in listen",
            ),
            _ => {}
        },
    }
}

fn unix(path: &Path, findings: &mut Findings) {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if UnixStream::connect(path).is_ok() {
        findings.fine("listen", format!("a server listens on {path:?}"));
    } else if !directory.is_dir() {
        findings.broken(
            "listen",
            format!("there is no directory {directory:?} for the socket"),
            "make it, or RuntimeDirectory= in the unit",
        );
    } else {
        findings.fine("listen", format!("{path:?} is free"));
    }
}

fn identity(config: &Configuration, findings: &mut Findings) {
    let found = Identity::find(config.user.as_deref(), config.group.as_deref());
    let assumed = found.and_then(|identity| match identity {
        Some(identity) => identity.assume(),
        None => Ok(()),
    });
    if let Err(error) = assumed {
        let mend = "choose another user or group, or run this as root";
        findings.broken("user", error.to_string(), mend);
    }
}

fn directories(config: &Configuration, findings: &mut Findings) {
    if let Some(directory) = &config.nar_cache {
        let size = config.nar_cache_size.and_then(NonZeroU64::new);
        match KeptSpace::open(directory, size.map(NonZeroU64::get)) {
            Ok(_) => findings.fine("directories", format!("NARs can be kept in {directory:?}")),
            Err(error) => findings.broken(
                "directories",
                format!("NARs cannot be kept in {directory:?}: {error}"),
                "choose another nar-cache.directory, on a disk, that this user can write to",
            ),
        }
    }
    if let Some(directory) = &config.state_directory {
        match tempfile_in(directory) {
            Ok(()) => findings.fine("directories", format!("{directory:?} can be written to")),
            Err(error) => findings.broken(
                "directories",
                format!("the state directory {directory:?} cannot be written to: {error}"),
                "choose another state-directory that this user can write to",
            ),
        }
    }
}

/// Whether a file can be made there; none is left.
fn tempfile_in(directory: &Path) -> io::Result<()> {
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TMPFILE;
    rustix::fs::open(directory, flags, rustix::fs::Mode::RUSR)?;
    Ok(())
}

fn store(config: &Configuration, findings: &mut Findings) -> Option<Box<dyn Store>> {
    let settings = match Settings::from_process() {
        Ok(settings) => settings,
        Err(error) => {
            findings.broken("store", error.to_string(), "see what it says");
            return None;
        }
    };
    let store = match samovar_store::open(config.store.as_deref(), &settings) {
        Ok(store) => store,
        Err(error) => {
            let error = anyhow::Error::new(error);
            findings.broken("store", format!("{error:#}"), "see what it says");
            return None;
        }
    };
    if let Some(remark) = store.take_remark() {
        findings.doubtful("store", remark.to_string(), "see what it says");
    }
    match store.newest(None, 1) {
        Ok(paths) if paths.is_empty() => findings.doubtful(
            "store",
            format!("{} holds no paths", store.store_dir()),
            "is that the right store? See the key store",
        ),
        Ok(_) => findings.fine("store", format!("{} can be read", store.store_dir())),
        Err(error) => {
            let error = anyhow::Error::new(error);
            let mend = "see what it says; the database has to be readable for the server's user";
            findings.broken("store", format!("{error:#}"), mend);
            return None;
        }
    }
    Some(store)
}

fn daemon(config: &Configuration, findings: &mut Findings) {
    if config.hold == Some(HoldTime::Off) {
        return;
    }
    let Ok(settings) = Settings::from_process() else {
        return;
    };
    let socket = settings.socket();
    match UnixStream::connect(&socket) {
        Ok(_) => findings.fine("daemon", "paths on their way are held against collection"),
        Err(error) => findings.doubtful(
            "daemon",
            format!(
                "nix-daemon does not answer at {socket:?} ({error}): paths on their way are not \
                 held against garbage collection"
            ),
            "start nix-daemon.socket and let this user connect (allowed-users in nix.conf)",
        ),
    }
}
