//! Checks the caches of the running server: requests a path from each, as a client does.

use samovar_nix::StorePath;
use samovar_server::checkup::{ExaminedCache, Findings};
use samovar_store::Store;
use ureq::tls::ClientCert;

use crate::cache::Cache;
use crate::http::{CHECK_SERVER, Http, Patience};
use crate::private::Private;
use crate::remote::Remote;

const SUBJECT: &str = "round trip";

/// How to make a server reachable.
const UNREACHABLE_FIX: &str = "start the server, or give its URL with --url; if it does not \
                               start, see the errors above and its log";

/// Where and how a cache is requested.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) url: &'a str,
    /// Whether this is the URL for clients, which this machine may be unable to reach.
    pub(super) is_public: bool,
    /// The URL with the host and port to connect to, if they differ from `url`.
    pub(super) origin: Option<&'a str>,
    /// The client certificate to send.
    pub(super) certificate: Option<ClientCert>,
}

impl Place<'_> {
    fn open(&self) -> anyhow::Result<Cache> {
        let (remote, certificate) = (Remote::parse(self.url)?, self.certificate.clone());
        Cache::over(Http::with(
            remote,
            Patience::QUERY,
            certificate,
            self.origin,
        )?)
    }

    /// Returns the text of a finding with the address of the server.
    fn with_origin(&self, text: &str) -> String {
        match self.origin {
            Some(origin) => format!("at {origin}: {text}"),
            None => text.to_owned(),
        }
    }

    /// Returns what a private cache lacks, and how to check the access of a client.
    fn without_login(&self, refused: &str) -> (String, &'static str) {
        let is_secure = self.url.starts_with("https:");
        match (&self.certificate, is_secure) {
            (Some(_), _) => (
                format!(
                    "{refused}: the cache is private, and admits neither a request without a login \
                     nor the client certificate"
                ),
                "add the certificate to access.certificates, or give another certificate",
            ),
            (None, true) => (
                format!(
                    "{refused}: the cache is private, and the request had neither a login nor a \
                     client certificate"
                ),
                "none needed if this machine should have no access; to check a client's access: \
                 samovar doctor --client-certificate FILE --client-key FILE; to check a user's: \
                 curl --netrc-file FILE URL/nix-cache-info",
            ),
            (None, false) => (
                format!("{refused}: the cache is private, and the request had no login"),
                "none needed if this machine should have no access; to check a user's access: curl \
                 --netrc-file FILE URL/nix-cache-info",
            ),
        }
    }
}

/// Requests the newest path of the store that the cache allows, and the newest uploaded path, from
/// the cache at this place.
pub(super) fn make(
    at: Place<'_>,
    expected: &ExaminedCache,
    store: Option<&dyn Store>,
    findings: &mut Findings,
) {
    let cache = match at.open() {
        Ok(cache) => cache,
        Err(error) => {
            if let Some(Private::NoLogin(refused)) = error.downcast_ref() {
                let (fault, fix) = at.without_login(refused);
                let fault = at.with_origin(&fault);
                findings.warning(SUBJECT, format!("{fault}; nothing else was checked"), fix);
                return;
            }
            let text = format!("{error:#}");
            match fault_and_fix(&text, error.is::<Private>()) {
                (fault, UNREACHABLE_FIX) if at.is_public => findings.warning(
                    SUBJECT,
                    fault,
                    "check public-url, its host name and the proxy in front of the server; none \
                     needed if only this machine cannot reach it",
                ),
                (fault, fix) => findings.error(SUBJECT, at.with_origin(fault), fix),
            }
            return;
        }
    };
    match check(&cache, expected, store) {
        Ok(texts) => texts
            .into_iter()
            .for_each(|text| findings.ok(SUBJECT, at.with_origin(&text))),
        Err((text, fix)) => findings.error(SUBJECT, at.with_origin(&text), fix),
    }
}

/// Splits the message about a cache that cannot be opened into the fault and its fix.
fn fault_and_fix(text: &str, is_private: bool) -> (&str, &str) {
    if is_private {
        let fix = "use the login of a user or token of this cache: `samovar password NAME` and \
                   `samovar token line NAME` make new ones";
        return (text, fix);
    }
    match text.rsplit_once(": ") {
        Some((fault, CHECK_SERVER)) => (fault, UNREACHABLE_FIX),
        Some((fault, fix)) if !fix.ends_with('?') => (fault, fix),
        _ => (
            text,
            "give the URL of the server, or of one of its caches, with --url",
        ),
    }
}

/// Returns sentences about what works, or a problem with its fix.
fn check(
    cache: &Cache,
    expected: &ExaminedCache,
    store: Option<&dyn Store>,
) -> Result<Vec<String>, (String, &'static str)> {
    let url = cache.url();
    let is_cache = || Ok(vec![format!("{url} is a binary cache")]);
    let Some(store) = store else {
        return is_cache();
    };
    let (theirs, ours) = (cache.store_dir(), store.store_dir());
    if theirs != ours {
        let text = format!("{url} serves {theirs}, but the configured store is {ours}");
        let fix = "give the server's URL with --url, or the server's store with --store";
        return Err((text, fix));
    }
    let newest = expected.newest.as_ref();
    let newest = newest.map(|path| (path, "path of the store"));
    let uploaded = expected
        .uploaded
        .as_ref()
        .map(|path| (path, "uploaded path"));
    let paths = newest.into_iter().chain(uploaded);
    let texts = paths.map(|(path, kind)| check_path(cache, expected, path, kind));
    match texts.collect::<Result<Vec<_>, _>>()? {
        none if none.is_empty() => is_cache(),
        texts => Ok(texts),
    }
}

/// Requests the narinfo of a path, and checks its signatures. `kind`: the kind of path of which it
/// is the newest.
fn check_path(
    cache: &Cache,
    expected: &ExaminedCache,
    path: &StorePath,
    kind: &str,
) -> Result<String, (String, &'static str)> {
    let (url, dir) = (cache.url(), cache.store_dir());
    let shown = path.display(dir);
    let narinfos = cache.narinfos(&[path.hash_part()]);
    let narinfos = narinfos.map_err(|error| {
        let fix = "look for the cause in the log of the server, and repeat the check";
        (format!("{error:#}"), fix)
    })?;
    let Some(narinfo) = narinfos.into_iter().next().flatten() else {
        let text = format!("{url} does not have {shown}, the newest {kind}");
        let fix = match kind {
            "uploaded path" => {
                "check that the server uses this storage, and that the policy of the cache allows \
                 the path"
            }
            _ => {
                "check that the server runs with this configuration: send HUP to the server, and \
                 give the URL of this cache with --url"
            }
        };
        return Err((text, fix));
    };
    let fingerprint = narinfo.fingerprint(dir);
    let is_signed = |key: &samovar_nix::PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    let mut keys = expected.keys.iter().filter(|_| expected.signs_all);
    if let Some(key) = keys.find(|key| !is_signed(key)) {
        return Err((
            format!("{url} does not sign {shown} with {}", key.name()),
            "send HUP to the server to reload its keys, and check that the server runs with this \
             configuration",
        ));
    }
    let nar = cache.http().head(&format!("/{}", narinfo.url));
    match nar.map(|response| response.status()) {
        Ok(status) if status == 200 => Ok(format!("{url} serves {shown}")),
        Ok(status) => Err((
            format!("{url} has {shown}, but answers {status} for its NAR"),
            "look for the cause in the log of the server, which may be unable to read the files",
        )),
        Err(error) => Err((
            format!("{error:#}"),
            "look for the cause in the log of the server",
        )),
    }
}
