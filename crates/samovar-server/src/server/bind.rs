//! Binds listening sockets.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use samovar_http::Listener;
use samovar_http::tls::TlsConfig;

use super::upgrade::Kind;
use crate::config::{Configuration, Tls};
use crate::listener::{Bind, ListenSpec, TcpAddress, family_missing, inherited, is_within};
use crate::log::ErrorLog;

/// The listeners of a server.
#[derive(Debug, Default)]
pub(super) struct Bound {
    pub(super) listeners: Vec<Listener>,
    pub(super) files: SocketFiles,
    /// Whether the service manager has bound the sockets.
    pub(super) is_managed: bool,
    /// Listeners of the predecessor on addresses that are no longer configured. They are closed
    /// once this process serves.
    pub(super) retired: Vec<(Listener, Kind)>,
}

/// Binds the configured listeners, or uses the sockets passed by the service manager.
pub(super) fn listeners(
    config: &Configuration,
    tls: Option<&Secure<'_>>,
    errors: &ErrorLog,
) -> anyhow::Result<Bound> {
    let inherited = inherited()?;
    if !inherited.is_empty() {
        return managed(inherited, config, tls, errors);
    }
    let (listeners, files) = bind_all(&config.listeners, "listen", config, tls, errors)?;
    Ok(Bound {
        listeners,
        files,
        ..Bound::default()
    })
}

/// Uses the sockets that the service manager has bound.
fn managed(
    sockets: Vec<Listener>,
    config: &Configuration,
    tls: Option<&Secure<'_>>,
    errors: &ErrorLog,
) -> anyhow::Result<Bound> {
    check_inherited(config, &sockets, errors)?;
    let listeners = sockets.into_iter().map(|listener| match tls {
        // Sockets of the service manager replace all configured listeners: if any listener uses
        // TLS, all TCP sockets of the manager do.
        Some(tls) if listener.local_addr().is_some() => listener.tls(tls.config.clone()),
        _ => listener,
    });
    Ok(Bound {
        listeners: listeners.collect(),
        is_managed: true,
        ..Bound::default()
    })
}

/// Uses the sockets that a predecessor has passed, as far as they are configured, and binds the
/// other configured addresses.
pub(super) fn taken(
    sockets: Vec<(Listener, Kind)>,
    is_managed: bool,
    config: &Configuration,
    tls: Option<&Secure<'_>>,
    errors: &ErrorLog,
) -> anyhow::Result<Bound> {
    if is_managed {
        let sockets = sockets.into_iter().map(|(listener, _)| listener);
        return managed(sockets.collect(), config, tls, errors);
    }
    let mut bound = Bound {
        retired: sockets,
        ..Bound::default()
    };
    let option = config.names.option("listen");
    // Addresses with port 0 come last: each takes a socket with any port, but not one that an
    // address with a fixed port needs.
    let mut planned = plan(&config.listeners, &option, tls, errors)?;
    planned.sort_by_key(|(spec, _)| matches!(spec, ListenSpec::Tcp { port: 0, .. }));
    for (spec, bind) in planned {
        match bind {
            Bind::Unix(path) => match bound.take(|socket| is_at(socket, &path)) {
                Some((listener, kind)) => {
                    if kind == Kind::OwnFile {
                        bound.files.add(path);
                    }
                    bound.listeners.push(listener);
                }
                None => {
                    bound.listeners.push(unix(&path, config.backlog)?);
                    bound.files.add(path);
                }
            },
            Bind::FirstOf(addresses) => {
                let is_one = |socket: &Listener| addresses.iter().any(|one| is_on(socket, one));
                let listener = match bound.take(is_one) {
                    Some((listener, _)) => listener,
                    None => beside(&addresses, config, &option, &bound)?,
                };
                bound.listeners.push(secured(listener, spec, tls));
            }
            Bind::EachOf(addresses) => {
                let mut missing = Vec::new();
                for address in addresses {
                    match bound.take(|socket| is_on(socket, &address)) {
                        Some((listener, _)) => {
                            bound.listeners.push(secured(listener, spec, tls));
                        }
                        None => missing.push(address),
                    }
                }
                for address in missing {
                    match beside(&[address], config, &option, &bound) {
                        Ok(listener) => bound.listeners.push(secured(listener, spec, tls)),
                        // As at the start, one address of a name is enough.
                        Err(error) if bound.listeners.is_empty() => return Err(error),
                        Err(error) => errors.warning(format_args!("{error:#}")),
                    }
                }
            }
        }
    }
    for listener in &bound.listeners {
        // An error leaves the old length, which is harmless.
        listener.set_backlog(config.backlog).ok();
    }
    Ok(bound)
}

impl Bound {
    /// Takes the first socket of the predecessor that passes the test.
    fn take(&mut self, test: impl Fn(&Listener) -> bool) -> Option<(Listener, Kind)> {
        let at = self.retired.iter().position(|(socket, _)| test(socket))?;
        Some(self.retired.remove(at))
    }

    /// Closes the listeners of the predecessor that are no longer configured.
    pub(super) fn retire(&mut self, config: &Configuration, errors: &ErrorLog) {
        for (listener, kind) in self.retired.drain(..) {
            errors.info(format_args!(
                "not listening on {} any more, which {} does not name",
                name(&listener),
                config.names.option("listen")
            ));
            if let (Kind::OwnFile, Some(path)) = (kind, listener.path()) {
                // Ignore an error, as at the end of a server.
                std::fs::remove_file(path).ok();
            }
        }
    }
}

fn is_at(socket: &Listener, path: &Path) -> bool {
    let absolute = std::path::absolute(path).ok();
    let bound = socket
        .path()
        .and_then(|path| std::path::absolute(path).ok());
    bound.is_some() && bound == absolute
}

/// Returns whether a socket is bound to this address; port 0 stands for any.
fn is_on(socket: &Listener, address: &TcpAddress) -> bool {
    socket.local_addr().is_some_and(|bound| {
        let port = address.address.port();
        bound.ip() == address.address.ip()
            && (port == 0 || port == bound.port())
            // Only a socket on all addresses of IPv6 may accept IPv4 as well.
            && (bound.is_ipv4()
                || !bound.ip().is_unspecified()
                || socket.is_v6_only() == address.v6_only)
    })
}

/// Binds the first of the addresses that can be bound, although a socket of the predecessor may
/// listen on a wider or narrower address with the same port until this process serves.
fn beside(
    addresses: &[TcpAddress],
    config: &Configuration,
    option: &str,
    bound: &Bound,
) -> anyhow::Result<Listener> {
    let error = match first_of(addresses, config.backlog, option) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let is_old = |address: &&TcpAddress| {
        let mut ports = bound.retired.iter().filter_map(|(old, _)| old.local_addr());
        ports.any(|old| old.port() == address.address.port())
    };
    let shared = addresses
        .iter()
        .filter(|address| !address.v6_only)
        .find(is_old);
    let shared = shared.map(|address| Listener::tcp_shared(address.address, config.backlog));
    match shared {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(_)) => Err(error.context(format!(
            "the running server listens on the same port, and its address cannot be changed while \
             it runs: restart the server for the new value of {option}"
        ))),
        None => Err(error),
    }
}

/// Binds the listeners of the admin server.
pub(super) fn admin(
    config: &Configuration,
    errors: &ErrorLog,
) -> anyhow::Result<(Vec<Listener>, SocketFiles)> {
    let specs = &config.admin.listeners;
    bind_all(specs, "admin.listen", config, None, errors).map_err(|error| {
        let names = &config.names;
        match clash(specs, &config.listeners) {
            Some((spec, other)) => anyhow!(
                "cannot listen on {spec}: {} names it, and {} names {other} with the same port: \
                 set one of them to another port",
                names.option("admin.listen"),
                names.option("listen"),
            ),
            None => error,
        }
    })
}

/// Binds addresses that `option` configures.
fn bind_all(
    specs: &[ListenSpec],
    option: &str,
    config: &Configuration,
    tls: Option<&Secure<'_>>,
    errors: &ErrorLog,
) -> anyhow::Result<(Vec<Listener>, SocketFiles)> {
    let (backlog, option) = (config.backlog, config.names.option(option));
    let mut listeners = Vec::new();
    let mut files = SocketFiles::default();
    for (spec, bind) in plan(specs, &option, tls, errors)? {
        match bind {
            Bind::Unix(path) => {
                listeners.push(unix(&path, backlog)?);
                files.add(path);
            }
            Bind::FirstOf(addresses) => {
                let bound = first_of(&addresses, backlog, &option)?;
                listeners.push(secured(bound, spec, tls));
            }
            Bind::EachOf(addresses) => {
                let bound = each_of(&addresses, backlog, &option)?;
                listeners.extend(bound.into_iter().map(|one| secured(one, spec, tls)));
            }
        }
    }
    Ok((listeners, files))
}

/// Resolves addresses, and leaves out those that others include: two sockets of one port must not
/// accept the same connections.
fn plan<'a>(
    specs: &'a [ListenSpec],
    option: &str,
    tls: Option<&Secure<'_>>,
    errors: &ErrorLog,
) -> anyhow::Result<Vec<(&'a ListenSpec, Bind)>> {
    let mut all = Vec::new();
    for spec in specs {
        all.push((spec, spec.resolve()?));
    }
    separate_families(&mut all);
    let is_secure = |spec| tls.is_some_and(|tls| tls.options.covers(spec));
    let mut planned: Vec<(&ListenSpec, Bind)> = Vec::new();
    for (index, (spec, bind)) in all.iter().enumerate() {
        let mut left = bind.clone();
        for (other_index, (other, other_bind)) in all.iter().enumerate() {
            let covers = |address: &TcpAddress| {
                let is_covered = other_bind.includes(address);
                // Of two that include each other, the first one stays.
                let is_equal = is_covered && index < other_index && bind.includes_all(other_bind);
                is_covered && index != other_index && !is_equal
            };
            if !left.remove(covers) {
                continue;
            }
            if is_secure(spec) != is_secure(other) {
                bail!(
                    "{option} names {spec} and {other}, which includes it, and only one of them \
                     uses TLS: set one of them to another port"
                );
            }
            errors.info(format_args!(
                "no socket of its own for {spec}: {other} includes it"
            ));
        }
        if !left.is_empty() {
            planned.push((*spec, left));
        }
    }
    Ok(planned)
}

/// Makes `[::]` accept IPv6 only if every IPv4 address of its port is given, too.
fn separate_families(all: &mut [(&ListenSpec, Bind)]) {
    let is_any_ipv4 = |bind: &Bind| {
        let first = bind.addresses().first()?;
        let is_any = first.address.is_ipv4() && first.address.ip().is_unspecified();
        (is_any && first.address.port() > 0).then_some(first.address.port())
    };
    let ports: Vec<u16> = all
        .iter()
        .filter_map(|(_, bind)| is_any_ipv4(bind))
        .collect();
    for (_, bind) in all {
        if let Bind::FirstOf(addresses) = bind
            && let [only] = &mut addresses[..]
            && only.address.is_ipv6()
            && only.address.ip().is_unspecified()
            && ports.contains(&only.address.port())
        {
            only.v6_only = true;
        }
    }
}

/// Returns an address of `specs` and one of `others` that accept the same connections; `None` if
/// there are none.
fn clash<'a>(
    specs: &'a [ListenSpec],
    others: &'a [ListenSpec],
) -> Option<(&'a ListenSpec, &'a ListenSpec)> {
    let clash = |one: &ListenSpec, other: &ListenSpec| {
        let (Ok(one), Ok(other)) = (one.resolve(), other.resolve()) else {
            return false;
        };
        let includes_any = |a: &Bind, b: &Bind| b.addresses().iter().any(|b| a.includes(b));
        includes_any(&one, &other) || includes_any(&other, &one)
    };
    let find = |one: &'a ListenSpec| others.iter().find(|other| clash(one, other));
    specs.iter().find_map(|one| Some((one, find(one)?)))
}

/// Refuses inherited sockets that accept more connections than the configured listeners: a service
/// meant for one address must not be open on all.
fn check_inherited(
    config: &Configuration,
    inherited: &[Listener],
    errors: &ErrorLog,
) -> anyhow::Result<()> {
    if !config.listen_given {
        errors.info("listening on the service manager's sockets");
        return Ok(());
    }
    let (given, option) = (&config.listeners, config.names.option("listen"));
    let is_named = |socket: &&Listener| given.iter().any(|spec| is_within(socket, spec));
    if let Some(other) = inherited.iter().find(|socket| !is_named(socket)) {
        let named: Vec<String> = given.iter().map(ToString::to_string).collect();
        bail!(
            "the service manager passed the socket {}, but {option} names {}: set \
             ListenStream= in the socket unit to these addresses, or remove {option}",
            name(other),
            named.join(", ")
        );
    }
    let is_missing = |spec: &&ListenSpec| !inherited.iter().any(|one| is_within(one, spec));
    for spec in given.iter().filter(is_missing) {
        errors.warning(format_args!(
            "not listening on {spec}, which {option} names: the service manager passed no socket \
             for it; add it to ListenStream= in the socket unit"
        ));
    }
    Ok(())
}

/// Returns the address of a listener, or its path, for messages.
fn name(listener: &Listener) -> String {
    match (listener.local_addr(), listener.path()) {
        (Some(address), _) => address.to_string(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "a unix socket without a path".to_owned(),
    }
}

/// TLS settings: the listeners that use it, and the certificate.
pub(super) struct Secure<'a> {
    pub(super) options: &'a Tls,
    pub(super) config: TlsConfig,
}

/// Files of the Unix sockets that this process has bound. Dropping it removes the files, also after
/// a failed start.
#[derive(Debug, Default)]
pub(super) struct SocketFiles(Vec<SocketFile>);

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file when it was bound; `None` if they could not be read.
    identity: Option<(u64, u64)>,
}

impl SocketFiles {
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|file| &*file.path)
    }

    /// Returns the kind of a listener, to be passed to a successor.
    pub(super) fn kind(&self, listener: &Listener) -> Kind {
        if listener.is_secure() {
            return Kind::Secure;
        }
        match listener.path() {
            Some(path) if self.paths().any(|own| own == path) => Kind::OwnFile,
            _ => Kind::Plain,
        }
    }

    /// Keeps the files from being removed on drop: they belong to a successor now.
    pub(super) fn leave(&mut self) {
        self.0.clear();
    }

    fn add(&mut self, path: PathBuf) {
        let identity = identity(&path);
        self.0.push(SocketFile { path, identity });
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            // Remove only our own file: another server may have replaced it.
            if file.identity.is_some() && identity(&file.path) == file.identity {
                // Ignore errors: the directory may not be writable after the switch of the user.
                // The next server replaces the file.
                std::fs::remove_file(&file.path).ok();
            }
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn secured(listener: Listener, spec: &ListenSpec, tls: Option<&Secure<'_>>) -> Listener {
    match tls {
        Some(tls) if tls.options.covers(spec) => listener.tls(tls.config.clone()),
        _ => listener,
    }
}

fn unix(path: &Path, backlog: u32) -> anyhow::Result<Listener> {
    Listener::unix(path, backlog).map_err(|error| {
        let fix = match error.kind() {
            io::ErrorKind::AddrInUse => {
                return anyhow!(
                    "cannot listen on {path:?}: another server listens there, stop it or choose \
                     another path"
                );
            }
            io::ErrorKind::AlreadyExists => {
                return anyhow!(
                    "cannot listen on {path:?}: there is a file that is no socket, move it away or \
                     choose another path"
                );
            }
            io::ErrorKind::PermissionDenied => "this user may not make a socket there",
            io::ErrorKind::NotFound => "its directory does not exist: make it",
            _ => "choose another path",
        };
        anyhow::Error::new(error).context(format!("cannot listen on {path:?}: {fix}"))
    })
}

fn tcp(address: &TcpAddress, backlog: u32) -> io::Result<Listener> {
    if address.v6_only {
        Listener::tcp_v6_only(address.address, backlog)
    } else {
        Listener::tcp(address.address, backlog)
    }
}

fn explain(address: &TcpAddress, option: &str, error: io::Error) -> anyhow::Error {
    let address = address.address;
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another server listens there: stop it, or set {option} to another port")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "ports below 1024 need root or CAP_NET_BIND_SERVICE: set {option} to another port"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address: change {option}")
        }
        _ => format!("set {option} to another address"),
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}: {fix}"))
}

fn first_of(addresses: &[TcpAddress], backlog: u32, option: &str) -> anyhow::Result<Listener> {
    let mut rest = addresses.iter();
    while let Some(address) = rest.next() {
        match tcp(address, backlog) {
            Ok(listener) => return Ok(listener),
            Err(error) if family_missing(&error) && rest.len() > 0 => {}
            Err(error) => return Err(explain(address, option, error)),
        }
    }
    bail!("there is no address to listen on")
}

fn each_of(addresses: &[TcpAddress], backlog: u32, option: &str) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for address in addresses {
        match tcp(address, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if family_missing(&error) => missing = Some((address, error)),
            Err(error) => return Err(explain(address, option, error)),
        }
    }
    match missing {
        Some((address, error)) if listeners.is_empty() => Err(explain(address, option, error)),
        _ => Ok(listeners),
    }
}
