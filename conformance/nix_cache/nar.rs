//! Cases of NARs: bytes, ranges, compression.

use crate::Level::{May, Must, Should};
use crate::cache::{Cache, sha256};
use crate::{Case, Outcome, Problem, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(
        Must,
        "nar.found",
        "GET of the URL in a narinfo is 200",
        found,
    ),
    case(Must, "nar.size", "a NAR has NarSize bytes", size),
    case(Must, "nar.hash", "a NAR has the hash NarHash", hash),
    case(
        Must,
        "nar.file",
        "the file has the FileHash and FileSize of the narinfo, if present",
        file,
    ),
    case(Should, "nar.length", "Content-Length is present", length),
    case(
        Must,
        "nar.head",
        "HEAD has the status of GET, and the connection can be reused",
        head,
    ),
    case(
        Should,
        "nar.type",
        "the media type is not text, which proxies compress",
        media_type,
    ),
    case(
        Should,
        "nar.accept-ranges",
        "Accept-Ranges is `bytes`",
        accept_ranges,
    ),
    case(
        Should,
        "nar.range",
        "a range is 206 with these bytes and Content-Range",
        range,
    ),
    case(
        Should,
        "nar.range-open",
        "a range without an end goes to the end",
        open_range,
    ),
    case(
        Should,
        "nar.range-suffix",
        "a range without a start counts from the end",
        suffix,
    ),
    case(
        Should,
        "nar.range-beyond",
        "a range beyond the end is 416 with the size",
        beyond,
    ),
    case(
        Must,
        "nar.range-unknown",
        "a range in another unit than bytes is ignored",
        unknown_unit,
    ),
    case(
        Must,
        "nar.coding",
        "a client that accepts no content coding gets the plain bytes",
        no_coding,
    ),
    case(
        May,
        "nar.zstd",
        "a client that accepts zstd gets zstd",
        zstd,
    ),
    case(
        Must,
        "nar.zstd-bytes",
        "the zstd response decodes to the same file",
        zstd_bytes,
    ),
];

fn url(cache: &Cache) -> Result<String, Problem> {
    cache.narinfo(cache.path())?.url()
}

fn found(cache: &Cache) -> Outcome {
    for path in &cache.paths {
        cache.found(&cache.narinfo(path)?.url()?)?;
    }
    Ok(())
}

fn size(cache: &Cache) -> Outcome {
    for path in &cache.paths {
        let len = cache.nar(path)?.len().to_string();
        let narinfo = cache.narinfo(path)?;
        let announced = narinfo.required("NarSize")?;
        ensure(
            len == announced,
            format!("{path}: {len} bytes, not {announced}"),
        )?;
    }
    Ok(())
}

fn hash(cache: &Cache) -> Outcome {
    for path in &cache.paths {
        let hash = sha256(&cache.nar(path)?);
        let narinfo = cache.narinfo(path)?;
        let announced = narinfo.required("NarHash")?;
        if !announced.starts_with("sha256:") || announced.len() != hash.len() {
            return Err(skipped("NarHash is not in base 32"));
        }
        ensure(
            hash == announced,
            format!("{path}: {hash}, not {announced}"),
        )?;
    }
    Ok(())
}

fn file(cache: &Cache) -> Outcome {
    let narinfo = cache.narinfo(cache.path())?;
    let (hash, size) = (narinfo.get("FileHash"), narinfo.get("FileSize"));
    if hash.is_none() && size.is_none() {
        return Err(skipped("the narinfo has neither field"));
    }
    let file = cache.found(&narinfo.url()?)?.body;
    let len = file.len().to_string();
    ensure(
        size.is_none_or(|size| size == len),
        format!("{len} bytes, not {size:?}"),
    )?;
    let found = sha256(&file);
    let is_same = hash.is_none_or(|hash| hash.len() != found.len() || hash == found);
    ensure(is_same, format!("{found}, not {hash:?}"))
}

fn length(cache: &Cache) -> Outcome {
    let response = cache.found(&url(cache)?)?;
    let length = response
        .header("content-length")
        .and_then(|length| length.parse().ok());
    ensure(length == Some(response.body.len()), format!("{length:?}"))
}

fn head(cache: &Cache) -> Outcome {
    let url = url(cache)?;
    let responses = cache.on_one_connection(&[("HEAD", &*url), ("GET", "/nix-cache-info")])?;
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    ensure(statuses == [200, 200], format!("{statuses:?}"))
}

fn media_type(cache: &Cache) -> Outcome {
    let response = cache.found(&url(cache)?)?;
    let media_type = response.header("content-type").unwrap_or("");
    ensure(!media_type.starts_with("text/"), media_type)
}

fn accept_ranges(cache: &Cache) -> Outcome {
    let response = cache.found(&url(cache)?)?;
    let value = response.header("accept-ranges");
    ensure(value == Some("bytes"), format!("{value:?}"))
}

/// Requests `range` of the file, whose bytes `start..end` must come.
fn check_range(cache: &Cache, range: &str, bounds: impl Fn(usize) -> (usize, usize)) -> Outcome {
    let url = url(cache)?;
    let whole = cache.found(&url)?.body;
    let (start, end) = bounds(whole.len());
    let response = cache.send("GET", &url, &format!("Range: bytes={range}\r\n"))?;
    ensure(
        response.status == 206,
        format!("status {}", response.status),
    )?;
    let expected = format!("bytes {start}-{}/{}", end - 1, whole.len());
    let found = response.header("content-range");
    ensure(
        found == Some(&*expected),
        format!("{found:?}, not {expected}"),
    )?;
    ensure(
        whole.get(start..end) == Some(&*response.body),
        "other bytes",
    )
}

fn range(cache: &Cache) -> Outcome {
    check_range(cache, "10-59", |_| (10, 60))
}

fn open_range(cache: &Cache) -> Outcome {
    check_range(cache, "50-", |len| (50, len))
}

fn suffix(cache: &Cache) -> Outcome {
    check_range(cache, "-30", |len| (len - 30, len))
}

fn beyond(cache: &Cache) -> Outcome {
    let url = url(cache)?;
    let len = cache.found(&url)?.body.len();
    let response = cache.send("GET", &url, &format!("Range: bytes={len}-\r\n"))?;
    ensure(
        response.status == 416,
        format!("status {}", response.status),
    )?;
    let found = response.header("content-range");
    ensure(
        found == Some(&*format!("bytes */{len}")),
        format!("{found:?}"),
    )
}

fn unknown_unit(cache: &Cache) -> Outcome {
    let url = url(cache)?;
    let status = cache.send("GET", &url, "Range: paths=0-1\r\n")?.status;
    ensure(status == 200, format!("status {status}"))
}

fn no_coding(cache: &Cache) -> Outcome {
    let response = cache.send("GET", &url(cache)?, "Accept-Encoding: identity\r\n")?;
    let coding = response.header("content-encoding");
    ensure(
        coding.is_none_or(|coding| coding == "identity"),
        format!("{coding:?}"),
    )
}

fn coded(cache: &Cache) -> Result<(Option<String>, Vec<u8>), Problem> {
    let response = cache.send("GET", &url(cache)?, "Accept-Encoding: zstd\r\n")?;
    let coding = response.header("content-encoding").map(str::to_owned);
    Ok((coding, response.body))
}

fn zstd(cache: &Cache) -> Outcome {
    let (coding, _) = coded(cache)?;
    ensure(coding.as_deref() == Some("zstd"), format!("{coding:?}"))
}

fn zstd_bytes(cache: &Cache) -> Outcome {
    let (coding, bytes) = coded(cache)?;
    let bytes = match coding.as_deref() {
        Some("zstd") => zstd::decode_all(&*bytes)?,
        _ => return Err(skipped("the response has no content coding")),
    };
    ensure(bytes == cache.found(&url(cache)?)?.body, "other bytes")
}
