//! Cases of `/nix-cache-info`.

use crate::Level::{May, Must, Should};
use crate::cache::Cache;
use crate::{Case, Outcome, Problem, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(Must, "info.found", "GET /nix-cache-info is 200", found),
    case(Must, "info.lines", "each line is `Name: value`", lines),
    case(
        Must,
        "info.store-dir",
        "StoreDir is an absolute path",
        store_dir,
    ),
    case(
        Must,
        "info.priority",
        "Priority, if present, is a number",
        priority,
    ),
    case(
        Should,
        "info.mass-query",
        "WantMassQuery is 1, so clients ask for many paths",
        mass,
    ),
    case(
        May,
        "info.type",
        "the media type is text/x-nix-cache-info",
        media_type,
    ),
    case(
        Must,
        "info.head",
        "HEAD has the status of GET, and the connection can be reused",
        head,
    ),
    case(
        Should,
        "info.keep-alive",
        "a connection carries a hundred requests",
        keep_alive,
    ),
    case(May, "info.method", "POST is refused with 405", post),
];

const TARGET: &str = "/nix-cache-info";

fn value(cache: &Cache, name: &str) -> Result<Option<String>, Problem> {
    let text = cache.found(TARGET)?.text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Ok(value.map(str::to_owned))
}

fn found(cache: &Cache) -> Outcome {
    cache.found(TARGET).map(drop)
}

fn lines(cache: &Cache) -> Outcome {
    let text = cache.found(TARGET)?.text();
    let is_line = |line: &str| {
        line.split_once(": ")
            .is_some_and(|(name, _)| !name.is_empty())
    };
    ensure(text.lines().all(is_line), format!("{text:?}"))
}

fn store_dir(cache: &Cache) -> Outcome {
    let value = value(cache, "StoreDir")?;
    let is_absolute = value.as_deref().is_some_and(|dir| dir.starts_with('/'));
    ensure(is_absolute, format!("StoreDir: {value:?}"))
}

fn priority(cache: &Cache) -> Outcome {
    let value = value(cache, "Priority")?.ok_or_else(|| skipped("no Priority"))?;
    ensure(value.parse::<u32>().is_ok(), format!("Priority: {value}"))
}

fn mass(cache: &Cache) -> Outcome {
    let value = value(cache, "WantMassQuery")?;
    ensure(
        value.as_deref() == Some("1"),
        format!("WantMassQuery: {value:?}"),
    )
}

fn media_type(cache: &Cache) -> Outcome {
    let response = cache.found(TARGET)?;
    let media_type = response.header("content-type");
    ensure(
        media_type == Some("text/x-nix-cache-info"),
        format!("{media_type:?}"),
    )
}

fn head(cache: &Cache) -> Outcome {
    let responses = cache.on_one_connection(&[("HEAD", TARGET), ("GET", TARGET)])?;
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    ensure(statuses == [200, 200], format!("{statuses:?}"))
}

fn keep_alive(cache: &Cache) -> Outcome {
    let responses = cache.on_one_connection(&[("GET", TARGET); 100])?;
    let is_good = responses.iter().all(|response| response.status == 200);
    ensure(is_good, "a status other than 200")
}

fn post(cache: &Cache) -> Outcome {
    let status = cache.send("POST", TARGET, "Content-Length: 0\r\n")?.status;
    ensure(status == 405, format!("status {status}"))
}
