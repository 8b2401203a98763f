//! Parses values of command-line options by starman's rules.

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::time::Duration;

use samovar_cache::normal_prefix;

use super::{GC_LEASE_TIME_MIN, unit};

/// Maximum time, seconds: a hundred years. Longer times are reduced to this.
const SECONDS_MAX: f64 = 3_155_760_000.0;

/// Parses a whole number that fits `T`; `None` for any other text.
pub fn whole<T: FromStr>(text: &OsStr) -> Option<T> {
    text.to_str()?.trim().parse().ok()
}

/// Parses a count. Numbers above `u64::MAX` become `u64::MAX`. Returns `None` for any other text.
pub fn count(text: &OsStr) -> Option<u64> {
    let digits = text.to_str()?.trim();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// Parses a number of bytes: a count, or a number with a unit, as in `64 MiB`.
pub fn size(text: &OsStr) -> Option<u64> {
    count(text).or_else(|| unit::size(text.to_str()?))
}

/// Parses a time: seconds with an optional fraction, as starman passes to `select`, or a number
/// with a unit, as in `10 min`.
pub fn seconds(text: &OsStr) -> Option<Duration> {
    let text = text.to_str()?.trim();
    let Ok(seconds) = text.parse::<f64>() else {
        return unit::time(text);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return None;
    }
    Duration::try_from_secs_f64(seconds.min(SECONDS_MAX)).ok()
}

/// Parses how long a GC lease lasts: at least one second. `off` and `0` give zero, which turns
/// leases off.
pub fn gc_lease(text: &OsStr) -> Option<Duration> {
    let time = seconds(text)?;
    (time.is_zero() || time >= GC_LEASE_TIME_MIN).then_some(time)
}

/// Parses the value of an option that is `first` or `never`. Returns whether the first NAR of each
/// path is verified; `None` for any other text.
pub fn verifies_first(text: &OsStr) -> Option<bool> {
    match text.to_str()? {
        "first" => Some(true),
        "never" => Some(false),
        _ => None,
    }
}

/// Parses a URL path and removes its trailing slashes; `Some("")` for the root. Two texts for the
/// same path give the same one.
pub fn url_prefix(text: &OsStr) -> Option<String> {
    let path = text.to_str()?.trim_end_matches('/');
    let well_formed = path.is_empty() || path.starts_with('/');
    let clean = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
    let normal = normal_prefix(path).filter(|_| well_formed && clean)?;
    let plain = normal
        .split('/')
        .all(|segment| segment != "." && segment != "..");
    plain.then_some(normal)
}

/// Parses the URL of a cache and removes its trailing slashes. Accepts only characters that need no
/// quotes in `nix.conf` and in Nix expressions, and no login, because every visitor sees the URL.
pub fn public_url(text: &str) -> Option<String> {
    let url = text.trim_end_matches('/');
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/[]%@".contains(&byte);
    let host = rest.split('/').next().unwrap_or_default();
    (!host.is_empty() && !host.contains('@') && rest.bytes().all(plain)).then(|| url.to_owned())
}

/// Description of the URL of an upstream.
pub(super) const UPSTREAM_URL: &str = "a URL that begins with http:// or https://";

/// Parses the URL of an upstream, which may contain a login. Returns it with scheme and host in
/// lower case, and without the port of the scheme and trailing slashes.
///
/// # Errors
///
/// A description of a valid URL.
pub fn upstream_url(text: &str) -> Result<String, String> {
    let expected = |what: &str| format!("{UPSTREAM_URL}, {what}");
    let (scheme, rest) = text.split_once("://").ok_or(UPSTREAM_URL)?;
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match &*scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(UPSTREAM_URL.to_owned()),
    };
    let authority_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_len);
    // What is before it may be the rest of a login.
    if path.contains('@') {
        let what = "with / ? # of a login written as %2F %3F %23, and @ in its path as %40";
        return Err(expected(what));
    }
    if path.contains(['?', '#']) {
        return Err(expected("without the part from ? or # on"));
    }
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !br#""'<>\^`{|}"#.contains(&byte);
    if !rest.bytes().all(is_plain) {
        return Err(expected("in which only characters of URLs occur"));
    }
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (format!("{login}@"), host),
        None => (String::new(), authority),
    };
    let host = host.to_ascii_lowercase();
    let port_at = host.rfind(':').filter(|at| !host[*at..].contains(']'));
    let (name, port) = host.split_at(port_at.unwrap_or(host.len()));
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = match name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
    {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_of_host),
    };
    let number = match port.strip_prefix(':') {
        Some(digits) => digits.parse::<u16>().ok().filter(|number| *number > 0),
        None => Some(default_port),
    };
    let number = number.filter(|_| is_host);
    let number = number.ok_or_else(|| expected("followed by a host, and maybe a port"))?;
    let port = if number == default_port { "" } else { port };
    let path = path.trim_end_matches('/');
    Ok(format!("{scheme}://{login}{name}{port}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_urls() {
        let check = |text: &str, expected: &str| {
            assert_eq!(upstream_url(text).as_deref(), Ok(expected), "{text}");
        };
        check("https://a.example/", "https://a.example");
        check("HTTPS://A.example:443/T/a//", "https://a.example/T/a");
        check("http://a:443", "http://a:443");
        check("http://[::1]:80/x", "http://[::1]/x");
        check("http://Ada:s@p@A:1/x", "http://Ada:s@p@a:1/x");
        check("http://a/%40x", "http://a/%40x");
        let refuse = |text: &str, part: &str| {
            let expected = upstream_url(text).unwrap_err();
            assert!(expected.contains(part), "{text}: {expected}");
        };
        for text in ["", "a.example", "ftp://a", "https:/a", "://a"] {
            refuse(text, "begins with http:// or https://");
        }
        for text in [
            "https://",
            "https:///x",
            "https://u@",
            "http://a:0",
            "http://a:65536",
            "http://a:",
            "http://[::1",
            "http://[x]",
            "http://a,b",
        ] {
            refuse(text, "followed by a host");
        }
        refuse("https://a?priority=1", "without the part from ?");
        refuse("https://a/#x", "without the part from ?");
        refuse("https://u:a/b@c", "%2F");
        refuse("https://a/x@y", "%40");
        for text in [
            "http://a b",
            "http://a/\u{e9}",
            "http://a\n",
            "http://u:'@a",
        ] {
            refuse(text, "only characters of URLs");
        }
    }

    #[test]
    fn public_urls() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(public_url(text).as_deref(), expected, "{text}");
        };
        check("https://a.example/", Some("https://a.example"));
        check("http://[::1]:5000/team/a", Some("http://[::1]:5000/team/a"));
        for bad in [
            "",
            "a.example",
            "https://",
            "javascript:x",
            "https://user:password@a.example",
            "https:///path",
            "http://a\"; b",
            "http://a${b}",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn counts() {
        let check = |text: &str, expected| assert_eq!(count(OsStr::new(text)), expected, "{text}");
        check("0", Some(0));
        check("+5", Some(5));
        check("99999999999999999999999", Some(u64::MAX));
        check("", None);
        check("-1", None);
        check("4x", None);
    }

    #[test]
    fn sizes() {
        let check = |text: &str, expected| assert_eq!(size(OsStr::new(text)), expected, "{text}");
        check("+5", Some(5));
        check("99999999999999999999999", Some(u64::MAX));
        check("10 MiB", Some(10 << 20));
        check("off", Some(0));
        check("5 s", None);
    }

    #[test]
    fn times() {
        let check =
            |text: &str, expected| assert_eq!(seconds(OsStr::new(text)), expected, "{text}");
        check("0", Some(Duration::ZERO));
        check("1.5", Some(Duration::from_millis(1500)));
        check("1e99", Some(Duration::from_secs(3_155_760_000)));
        check("inf", Some(Duration::from_secs(3_155_760_000)));
        check("-1", None);
        check("nan", None);
        check("5s", Some(Duration::from_secs(5)));
        check("10 min", Some(Duration::from_secs(600)));
        check("off", Some(Duration::ZERO));
        check("5 fortnights", None);
    }

    #[test]
    fn prefixes() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(url_prefix(OsStr::new(text)).as_deref(), expected, "{text}");
        };
        check("/cache", Some("/cache"));
        check("/a/b/", Some("/a/b"));
        check("/", Some(""));
        check("cache", None);
        check("/a/../b", None);
        check("/a?b", None);
        check("/a b", None);
        check("/te%61m/%c3%a4", Some("/team/%C3%A4"));
        check("/a/%2e%2e/b", None);
        check("/a%2Fb", None);
        check("/a%", None);
        check("http://host/x", None);
    }
}
