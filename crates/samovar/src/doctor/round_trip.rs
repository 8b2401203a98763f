//! A path asked of the running server as a client asks.

use samovar_server::checkup::{Examined, Findings};

use crate::cache::{Cache, Private};

const SUBJECT: &str = "round trip";

/// Asks the server at `url` for the newest path of the store.
pub(super) fn make(url: &str, examined: &Examined, findings: &mut Findings) {
    let cache = match Cache::open(url) {
        Ok(cache) => cache,
        Err(error) if matches!(error.downcast_ref(), Some(Private::NoLogin(_))) => {
            findings.doubtful(
                SUBJECT,
                format!("{error:#}; nothing more was asked of it"),
                "nothing, if this machine is not to be let in; to see whether a user is: curl \
                 --netrc-file FILE URL/nix-cache-info",
            );
            return;
        }
        Err(error) => {
            findings.broken(
                SUBJECT,
                format!("{error:#}"),
                "start the server, or give its URL with --url; what keeps it from starting stands \
                 above, or in its log",
            );
            return;
        }
    };
    let url = cache.url();
    let Some(store) = &examined.store else {
        findings.fine(SUBJECT, format!("{url} is a binary cache"));
        return;
    };
    if cache.store_dir() != store.store_dir() {
        findings.broken(
            SUBJECT,
            format!(
                "{url} serves {}, the store here is {}",
                cache.store_dir(),
                store.store_dir()
            ),
            "give the server's URL with --url, or the server's store with --store",
        );
        return;
    }
    let newest = store.newest(None, 1).unwrap_or_default();
    let Some(path) = newest.first().map(|info| &info.path) else {
        findings.fine(SUBJECT, format!("{url} is a binary cache"));
        return;
    };
    let shown = path.display(store.store_dir());
    let narinfo = match cache.narinfos(&[path.hash_part()]) {
        Ok(answers) => answers.into_iter().next().flatten(),
        Err(error) => {
            let mend = "see what it says, and the server's log";
            findings.broken(SUBJECT, format!("{error:#}"), mend);
            return;
        }
    };
    let Some(narinfo) = narinfo else {
        findings.broken(
            SUBJECT,
            format!("{url} does not know {shown}, the newest path of the store"),
            "does it serve another store, or does its policy deny the path?",
        );
        return;
    };
    let fingerprint = narinfo.fingerprint(store.store_dir());
    let is_signed = |key: &samovar_nix::PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    match examined.keys.iter().find(|key| !is_signed(key)) {
        Some(key) => findings.broken(
            SUBJECT,
            format!("{url} does not sign {shown} with {}", key.name()),
            "send the server HUP, so that it reads its keys again; does it run with this \
             configuration?",
        ),
        None => findings.fine(SUBJECT, format!("{url} serves {shown}")),
    }
}
