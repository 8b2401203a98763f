//! Cases of `/HASH.narinfo`: fields and their syntax.

use crate::Level::{May, Must, Should};
use crate::cache::{Cache, Narinfo, hash_part, is_base_name, is_base32};
use crate::{Case, Outcome, broken, case, ensure, skipped};

pub(crate) const CASES: &[Case] = &[
    case(
        Must,
        "narinfo.found",
        "GET of the narinfo of a valid path is 200",
        found,
    ),
    case(
        Must,
        "narinfo.lines",
        "each line is `Name: value` and ends with a line feed",
        lines,
    ),
    case(
        Must,
        "narinfo.once",
        "each field except Sig occurs once",
        once,
    ),
    case(
        Must,
        "narinfo.store-path",
        "StorePath is the requested path",
        store_path,
    ),
    case(Must, "narinfo.url", "URL is relative and not empty", url),
    case(
        Must,
        "narinfo.compression",
        "Compression is a method that Nix knows",
        compression,
    ),
    case(Must, "narinfo.nar-hash", "NarHash is a SHA-256", nar_hash),
    case(
        Should,
        "narinfo.nar-hash-base32",
        "NarHash is in base 32",
        nar_hash_base32,
    ),
    case(
        Must,
        "narinfo.nar-size",
        "NarSize is a number above 0",
        nar_size,
    ),
    case(
        Must,
        "narinfo.file",
        "FileHash and FileSize, if present, are a hash and a number",
        file,
    ),
    case(
        Must,
        "narinfo.references",
        "References are base names of store paths",
        references,
    ),
    case(
        Should,
        "narinfo.references-sorted",
        "References are sorted",
        sorted,
    ),
    case(
        Must,
        "narinfo.closure",
        "each reference has a narinfo",
        closure,
    ),
    case(
        Must,
        "narinfo.deriver",
        "Deriver, if present, is the base name of a derivation",
        deriver,
    ),
    case(
        Must,
        "narinfo.sig",
        "each Sig is a name and 64 bytes in base 64",
        signatures,
    ),
    case(May, "narinfo.signed", "a signature is present", signed),
    case(
        Must,
        "narinfo.ca",
        "CA, if present, is a content address",
        content_address,
    ),
    case(
        Should,
        "narinfo.type",
        "the media type is text/x-nix-narinfo",
        media_type,
    ),
    case(
        Should,
        "narinfo.length",
        "Content-Length is present",
        length,
    ),
    case(
        Must,
        "narinfo.head",
        "HEAD has the status of GET, and the connection can be reused",
        head,
    ),
    case(
        Must,
        "narinfo.stable",
        "two requests in a row get the same text",
        stable,
    ),
];

fn each(cache: &Cache, check: impl Fn(&str, &Narinfo) -> Outcome) -> Outcome {
    for path in &cache.paths {
        check(path, &cache.narinfo(path)?)?;
    }
    Ok(())
}

fn target(cache: &Cache) -> String {
    format!("/{}.narinfo", cache.hash())
}

fn found(cache: &Cache) -> Outcome {
    each(cache, |_, _| Ok(()))
}

fn lines(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let text = &narinfo.0;
        let is_line = |line: &str| {
            line.split_once(':').is_some_and(|(name, value)| {
                !name.is_empty() && !name.contains(' ') && value.starts_with(' ')
            })
        };
        let is_good = text.ends_with('\n') && !text.contains('\r');
        ensure(is_good && text.lines().all(is_line), format!("{text:?}"))
    })
}

fn once(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let names = narinfo.0.lines().filter_map(|line| line.split_once(':'));
        let mut names: Vec<&str> = names
            .map(|(name, _)| name)
            .filter(|&name| name != "Sig")
            .collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair.first() == pair.last());
        ensure(twice.is_none(), format!("{twice:?}"))
    })
}

fn store_path(cache: &Cache) -> Outcome {
    each(cache, |path, narinfo| {
        let found = narinfo.required("StorePath")?;
        ensure(
            found == path || hash_part(found) == path,
            format!("{found}, not {path}"),
        )
    })
}

fn url(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let url = narinfo.required("URL")?;
        let is_relative = !url.is_empty() && !url.starts_with('/') && !url.contains("://");
        ensure(is_relative, format!("URL: {url}"))
    })
}

fn compression(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        // If the field is missing, Nix assumes bzip2.
        let found = narinfo.get("Compression").unwrap_or("bzip2");
        let known = [
            "none", "xz", "bzip2", "gzip", "zstd", "br", "lzip", "lz4", "lzma", "compress",
        ];
        ensure(known.contains(&found), format!("Compression: {found}"))
    })
}

fn nar_hash(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let hash = narinfo.required("NarHash")?;
        ensure(is_sha256(hash), format!("NarHash: {hash}"))
    })
}

/// Clients accept base 32, base 16 and all forms of base 64.
fn is_sha256(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:");
    let is_hex = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.is_some_and(|digits| is_base32(digits, 52) || is_hex(digits) || is_base64(digits, 44))
        || text
            .strip_prefix("sha256-")
            .is_some_and(|digits| is_base64(digits, 44))
}

fn is_base64(text: &str, len: usize) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    text.len() == len && text.len() - digits.len() <= 2 && digits.bytes().all(is_digit)
}

fn nar_hash_base32(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let hash = narinfo.required("NarHash")?;
        let digits = hash.strip_prefix("sha256:").unwrap_or("");
        ensure(is_base32(digits, 52), format!("NarHash: {hash}"))
    })
}

fn nar_size(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let size = narinfo.required("NarSize")?;
        let is_good = size.parse::<u64>().is_ok_and(|size| size > 0);
        ensure(is_good, format!("NarSize: {size}"))
    })
}

fn file(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let hash = narinfo.get("FileHash");
        ensure(hash.is_none_or(is_sha256), format!("FileHash: {hash:?}"))?;
        let size = narinfo.get("FileSize");
        let is_size = size.is_none_or(|size| size.parse::<u64>().is_ok());
        ensure(is_size, format!("FileSize: {size:?}"))
    })
}

fn references_of(narinfo: &Narinfo) -> Vec<&str> {
    let references = narinfo.get("References").unwrap_or("");
    references
        .split(' ')
        .filter(|name| !name.is_empty())
        .collect()
}

fn references(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let references = references_of(narinfo);
        let wrong = references.iter().find(|name| !is_base_name(name));
        ensure(wrong.is_none(), format!("{wrong:?}"))
    })
}

fn sorted(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let references = references_of(narinfo);
        ensure(references.is_sorted(), format!("{references:?}"))
    })
}

fn closure(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        for reference in references_of(narinfo) {
            cache.narinfo(reference)?;
        }
        Ok(())
    })
}

fn deriver(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        let deriver = narinfo.get("Deriver");
        let is_good = deriver.is_none_or(|name| {
            name == "unknown-deriver" || is_base_name(name) && name.ends_with(".drv")
        });
        ensure(is_good, format!("Deriver: {deriver:?}"))
    })
}

fn signatures(cache: &Cache) -> Outcome {
    each(cache, |_, narinfo| {
        for signature in narinfo.all("Sig") {
            let (name, bytes) = signature.split_once(':').unwrap_or((signature, ""));
            let is_good = !name.is_empty() && is_base64(bytes, 88);
            ensure(is_good, format!("Sig: {signature}"))?;
        }
        Ok(())
    })
}

fn signed(cache: &Cache) -> Outcome {
    let narinfo = cache.narinfo(cache.path())?;
    ensure(narinfo.get("Sig").is_some(), "no Sig")
}

fn content_address(cache: &Cache) -> Outcome {
    let mut is_there = false;
    each(cache, |_, narinfo| {
        let address = narinfo.get("CA");
        let is_good =
            address.is_none_or(|ca| ca.starts_with("fixed:") || ca.starts_with("text:sha256:"));
        ensure(is_good, format!("CA: {address:?}"))
    })?;
    for path in &cache.paths {
        is_there |= cache.narinfo(path)?.get("CA").is_some();
    }
    if is_there {
        Ok(())
    } else {
        Err(skipped("no path has this field"))
    }
}

fn media_type(cache: &Cache) -> Outcome {
    let response = cache.found(&target(cache))?;
    let media_type = response.header("content-type");
    ensure(
        media_type == Some("text/x-nix-narinfo"),
        format!("{media_type:?}"),
    )
}

fn length(cache: &Cache) -> Outcome {
    let response = cache.found(&target(cache))?;
    let length = response
        .header("content-length")
        .and_then(|length| length.parse().ok());
    ensure(length == Some(response.body.len()), format!("{length:?}"))
}

fn head(cache: &Cache) -> Outcome {
    let target = target(cache);
    let responses = cache.on_one_connection(&[("HEAD", &*target), ("GET", &*target)])?;
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    ensure(statuses == [200, 200], format!("{statuses:?}"))
}

fn stable(cache: &Cache) -> Outcome {
    let (first, second) = (cache.narinfo(cache.path())?, cache.narinfo(cache.path())?);
    if first.0 == second.0 {
        return Ok(());
    }
    Err(broken(format!("{:?}, then {:?}", first.0, second.0)))
}
