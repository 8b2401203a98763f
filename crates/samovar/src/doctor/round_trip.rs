//! Requests a path from the running server, as a client does.

use samovar_server::checkup::{Examined, Findings};

use crate::cache::{Cache, Private};

const SUBJECT: &str = "round trip";

/// Requests the newest path of the store from the server at `url`.
// Long: a list of checks, each of which returns if it fails.
pub(super) fn make(url: &str, examined: &Examined, findings: &mut Findings) {
    let cache = match Cache::open(url) {
        Ok(cache) => cache,
        Err(error) if matches!(error.downcast_ref(), Some(Private::NoLogin(_))) => {
            findings.warning(
                SUBJECT,
                format!("{error:#}; nothing else was checked"),
                "none needed if this machine should have no access; to check a user's access: curl \
                 --netrc-file FILE URL/nix-cache-info",
            );
            return;
        }
        Err(error) => {
            findings.error(
                SUBJECT,
                format!("{error:#}"),
                "start the server, or give its URL with --url; if it does not start, see the \
                 errors above and its log",
            );
            return;
        }
    };
    let url = cache.url();
    let Some(store) = &examined.store else {
        findings.ok(SUBJECT, format!("{url} is a binary cache"));
        return;
    };
    if cache.store_dir() != store.store_dir() {
        findings.error(
            SUBJECT,
            format!(
                "{url} serves {}, but the configured store is {}",
                cache.store_dir(),
                store.store_dir()
            ),
            "give the server's URL with --url, or the server's store with --store",
        );
        return;
    }
    let newest = store.newest(None, 1).unwrap_or_default();
    let Some(path) = newest.first().map(|info| &info.path) else {
        findings.ok(SUBJECT, format!("{url} is a binary cache"));
        return;
    };
    let shown = path.display(store.store_dir());
    let narinfo = match cache.narinfos(&[path.hash_part()]) {
        Ok(answers) => answers.into_iter().next().flatten(),
        Err(error) => {
            let fix = "see the message and the server's log";
            findings.error(SUBJECT, format!("{error:#}"), fix);
            return;
        }
    };
    let Some(narinfo) = narinfo else {
        findings.error(
            SUBJECT,
            format!("{url} does not have {shown}, the newest path of the store"),
            "check that it serves this store and that its policy allows the path",
        );
        return;
    };
    let fingerprint = narinfo.fingerprint(store.store_dir());
    let is_signed = |key: &samovar_nix::PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    match examined.keys.iter().find(|key| !is_signed(key)) {
        Some(key) => findings.error(
            SUBJECT,
            format!("{url} does not sign {shown} with {}", key.name()),
            "send HUP to the server to reload its keys, and check that it runs with this \
             configuration",
        ),
        None => findings.ok(SUBJECT, format!("{url} serves {shown}")),
    }
}
