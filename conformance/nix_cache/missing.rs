//! Cases of resources that do not exist.

use crate::Level::{Must, Should};
use crate::cache::{ABSENT, Cache, hash_part};
use crate::{Case, Outcome, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(
        Must,
        "missing.narinfo",
        "the narinfo of an unknown hash part is 404",
        narinfo,
    ),
    case(
        Must,
        "missing.head",
        "HEAD of an unknown narinfo is 404, and the connection can be reused",
        head,
    ),
    case(
        Must,
        "missing.not-valid",
        "the narinfo of a path that is not valid is 404",
        not_valid,
    ),
    case(
        Must,
        "missing.nar",
        "the NAR of an unknown path is 404",
        nar,
    ),
    case(
        Should,
        "missing.length",
        "a hash part of the wrong length is 404",
        length,
    ),
    case(
        Should,
        "missing.alphabet",
        "a hash part with letters outside base 32 is 404",
        alphabet,
    ),
    case(
        Should,
        "missing.case",
        "a hash part in upper case is 404",
        case_of_letters,
    ),
    case(
        Must,
        "missing.listing",
        "the listing of an unknown path is 404",
        listing,
    ),
    case(
        Should,
        "missing.log",
        "the log of an unknown derivation is 404",
        log,
    ),
    case(Should, "missing.other", "any other URL is 404", other),
    case(
        Must,
        "missing.outside",
        "no URL leads to a file outside of the cache",
        outside,
    ),
];

fn is_404(cache: &Cache, target: &str) -> Outcome {
    let status = cache.get(target)?.status;
    ensure(status == 404, format!("{target}: status {status}"))
}

fn narinfo(cache: &Cache) -> Outcome {
    is_404(cache, &format!("/{ABSENT}.narinfo"))
}

fn head(cache: &Cache) -> Outcome {
    let target = format!("/{ABSENT}.narinfo");
    let responses = cache.on_one_connection(&[("HEAD", &*target), ("GET", "/nix-cache-info")])?;
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    ensure(statuses == [404, 200], format!("{statuses:?}"))
}

fn not_valid(cache: &Cache) -> Outcome {
    let path = cache.absent.as_deref();
    let path = path.ok_or_else(|| skipped("no such path is known"))?;
    is_404(cache, &format!("/{}.narinfo", hash_part(path)))
}

fn nar(cache: &Cache) -> Outcome {
    is_404(cache, &format!("/nar/{ABSENT}.nar"))
}

fn length(cache: &Cache) -> Outcome {
    let hash = cache.hash();
    let short = hash.get(1..).unwrap_or(hash);
    is_404(cache, &format!("/{short}.narinfo"))?;
    is_404(cache, &format!("/{hash}0.narinfo"))
}

fn alphabet(cache: &Cache) -> Outcome {
    is_404(cache, &format!("/{}.narinfo", "e".repeat(32)))
}

fn case_of_letters(cache: &Cache) -> Outcome {
    is_404(
        cache,
        &format!("/{}.narinfo", cache.hash().to_ascii_uppercase()),
    )
}

fn listing(cache: &Cache) -> Outcome {
    is_404(cache, &format!("/{ABSENT}.ls"))
}

fn log(cache: &Cache) -> Outcome {
    is_404(cache, &format!("/log/{ABSENT}-absent.drv"))
}

fn other(cache: &Cache) -> Outcome {
    is_404(cache, "/no-such-resource")
}

fn outside(cache: &Cache) -> Outcome {
    for target in [
        "/../../../../etc/passwd",
        "/nar/%2e%2e/%2e%2e/etc/passwd",
        "/log/../../etc/passwd",
    ] {
        let response = cache.get(target)?;
        let is_refused = (400..500).contains(&response.status);
        ensure(is_refused, format!("{target}: status {}", response.status))?;
    }
    Ok(())
}
