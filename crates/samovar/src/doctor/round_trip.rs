//! Checks the running server: requests a path from it, as a client does.

use samovar_nix::StorePath;
use samovar_server::checkup::{Examined, Findings};

use crate::cache::Cache;
use crate::private::Private;

const SUBJECT: &str = "round trip";

/// Requests the newest path of the store, and the newest uploaded path, from the server at `url`.
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
    match check(&cache, examined) {
        Ok(texts) => texts
            .into_iter()
            .for_each(|text| findings.ok(SUBJECT, text)),
        Err((text, fix)) => findings.error(SUBJECT, text, fix),
    }
}

/// Returns sentences about what works, or a problem with its fix.
fn check(cache: &Cache, examined: &Examined) -> Result<Vec<String>, (String, &'static str)> {
    let url = cache.url();
    let is_cache = || Ok(vec![format!("{url} is a binary cache")]);
    let Some(store) = &examined.store else {
        return is_cache();
    };
    let (theirs, ours) = (cache.store_dir(), store.store_dir());
    if theirs != ours {
        let text = format!("{url} serves {theirs}, but the configured store is {ours}");
        let fix = "give the server's URL with --url, or the server's store with --store";
        return Err((text, fix));
    }
    let newest = store.newest(None, 1).unwrap_or_default();
    let newest = newest.first().map(|info| (&info.path, "path of the store"));
    let uploaded = examined
        .uploaded
        .as_ref()
        .map(|path| (path, "uploaded path"));
    let paths = newest.into_iter().chain(uploaded);
    let texts = paths.map(|(path, kind)| check_path(cache, examined, path, kind));
    match texts.collect::<Result<Vec<_>, _>>()? {
        none if none.is_empty() => is_cache(),
        texts => Ok(texts),
    }
}

/// Requests the narinfo of a path, and checks its signatures. `kind`: the kind of path of which it
/// is the newest.
fn check_path(
    cache: &Cache,
    examined: &Examined,
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
                "check that it serves this storage and that its policy allows the path"
            }
            _ => "check that it serves this store and that its policy allows the path",
        };
        return Err((text, fix));
    };
    let fingerprint = narinfo.fingerprint(dir);
    let is_signed = |key: &samovar_nix::PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    match examined.keys.iter().find(|key| !is_signed(key)) {
        Some(key) => Err((
            format!("{url} does not sign {shown} with {}", key.name()),
            "send HUP to the server to reload its keys, and check that it runs with this \
             configuration",
        )),
        None => Ok(format!("{url} serves {shown}")),
    }
}
