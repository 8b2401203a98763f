//! Forms of NAR URLs. Servers write them into narinfos, which clients cache for weeks.

use crate::Level::{May, Must};
use crate::cache::{Cache, sha256};
use crate::{Case, Outcome, Problem, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(
        May,
        "forms.nix-serve",
        "/nar/HASH-NARHASH.nar is the NAR (nix-serve)",
        nix_serve,
    ),
    case(
        May,
        "forms.nix-serve-old",
        "/nar/HASH.nar is the NAR (old nix-serve)",
        old,
    ),
    case(
        May,
        "forms.harmonia",
        "/nar/NARHASH.nar?hash=HASH is the NAR (harmonia)",
        harmonia,
    ),
    case(
        Must,
        "forms.wrong-hash",
        "a URL with the wrong NAR hash is not 200",
        wrong_hash,
    ),
    case(
        May,
        "forms.encoded",
        "a percent-encoded letter is the letter",
        encoded,
    ),
];

/// Returns the NAR hash's digits in base 32.
fn nar_hash(cache: &Cache) -> Result<String, Problem> {
    let narinfo = cache.narinfo(cache.path())?;
    let hash = narinfo.required("NarHash")?;
    let digits = hash
        .strip_prefix("sha256:")
        .filter(|digits| digits.len() == 52);
    digits
        .map(str::to_owned)
        .ok_or_else(|| skipped("NarHash is not in base 32"))
}

fn is_nar(cache: &Cache, target: &str) -> Outcome {
    let response = cache.found(target)?;
    let found = sha256(&response.body);
    let expected = format!("sha256:{}", nar_hash(cache)?);
    ensure(
        found == expected,
        format!("{target}: {found}, not {expected}"),
    )
}

fn nix_serve(cache: &Cache) -> Outcome {
    is_nar(
        cache,
        &format!("/nar/{}-{}.nar", cache.hash(), nar_hash(cache)?),
    )
}

fn old(cache: &Cache) -> Outcome {
    is_nar(cache, &format!("/nar/{}.nar", cache.hash()))
}

fn harmonia(cache: &Cache) -> Outcome {
    is_nar(
        cache,
        &format!("/nar/{}.nar?hash={}", nar_hash(cache)?, cache.hash()),
    )
}

fn wrong_hash(cache: &Cache) -> Outcome {
    let target = format!("/nar/{}-{}.nar", cache.hash(), "0".repeat(52));
    let status = cache.get(&target)?.status;
    ensure(status != 200, format!("{target}: status {status}"))
}

fn encoded(cache: &Cache) -> Outcome {
    cache.found("/%6eix-cache-info").map(drop)
}
