//! Cases of NAR listings (`/HASH.ls`) and build logs (`/log/DRV`).

use serde_json::Value;

use crate::Level::{May, Must};
use crate::cache::Cache;
use crate::{Case, Outcome, Problem, broken, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(May, "listing.found", "GET /HASH.ls is 200", found),
    case(
        Must,
        "listing.version",
        "a listing is JSON of version 1 with a root",
        version,
    ),
    case(
        Must,
        "listing.entries",
        "directories have entries, files sizes, links targets",
        entries,
    ),
    case(
        Must,
        "listing.offsets",
        "the bytes at narOffset in the NAR are those of the file",
        offsets,
    ),
    case(
        May,
        "log.found",
        "GET /log/DRV of a derivation with a build log is 200",
        log,
    ),
    case(Must, "log.text", "the log is not empty", log_text),
];

fn listing(cache: &Cache) -> Result<Value, Problem> {
    let response = cache.get(&format!("/{}.ls", cache.hash()))?;
    if response.status != 200 {
        return Err(skipped("the cache serves no listings"));
    }
    serde_json::from_slice(&response.body).map_err(broken)
}

fn found(cache: &Cache) -> Outcome {
    cache.found(&format!("/{}.ls", cache.hash())).map(drop)
}

fn version(cache: &Cache) -> Outcome {
    let listing = listing(cache)?;
    ensure(
        listing["version"] == 1 && listing["root"].is_object(),
        listing,
    )
}

/// Calls `check` for the root and everything below it.
fn walk(node: &Value, check: &mut dyn FnMut(&Value) -> Outcome) -> Outcome {
    check(node)?;
    let entries = node["entries"].as_object().into_iter().flatten();
    for (_, entry) in entries {
        walk(entry, check)?;
    }
    Ok(())
}

fn entries(cache: &Cache) -> Outcome {
    walk(&listing(cache)?["root"], &mut |node| {
        let is_good = match node["type"].as_str() {
            Some("directory") => node["entries"].is_object(),
            Some("regular") => node["size"].is_u64(),
            Some("symlink") => node["target"].is_string(),
            _ => false,
        };
        ensure(is_good, node)
    })
}

fn offsets(cache: &Cache) -> Outcome {
    let listing = listing(cache)?;
    let nar = cache.nar(cache.path())?;
    let number = |value: &Value| {
        value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
    };
    let mut count = 0;
    walk(&listing["root"], &mut |node| {
        let (Some(offset), Some(size)) = (number(&node["narOffset"]), number(&node["size"])) else {
            return Ok(());
        };
        count += 1;
        // In a NAR, a file's length precedes its bytes, as 64 bits in little-endian order.
        let length = offset
            .checked_sub(8)
            .and_then(|start| nar.get(start..offset));
        let is_there =
            length == Some(&(size as u64).to_le_bytes()[..]) && offset + size <= nar.len();
        ensure(is_there, node)
    })?;
    if count > 0 {
        Ok(())
    } else {
        Err(skipped("no offsets"))
    }
}

fn log_target(cache: &Cache) -> Result<String, Problem> {
    let drv = cache
        .log
        .as_deref()
        .and_then(|path| path.rsplit('/').next());
    let drv = drv.ok_or_else(|| skipped("no derivation with a log is known"))?;
    Ok(format!("/log/{drv}"))
}

fn log(cache: &Cache) -> Outcome {
    cache.found(&log_target(cache)?).map(drop)
}

fn log_text(cache: &Cache) -> Outcome {
    let response = cache.get(&log_target(cache)?)?;
    if response.status != 200 {
        return Err(skipped("the cache serves no logs"));
    }
    ensure(!response.body.is_empty(), "an empty log")
}
