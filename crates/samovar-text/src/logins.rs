//! Removes logins from the URLs in texts, so that no output contains a password.

/// Returns whether `rest`, the URL after its host, may contain the end of a login: a login with a
/// `/`, `?` or `#` that was not percent-encoded is split there.
#[must_use]
pub fn may_end_in_login(authority: &str, rest: &str) -> bool {
    let host = rest.rsplit_once('@').map(|(_, host)| host);
    // After the name of a ref, `@` and a number are a generation: no host has such a name.
    let is_host = |host: &str| host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_digit());
    authority.contains([':', '@']) && host.is_some_and(is_host)
}

/// Start of a URL, and of one that was read as a path, which has lost a slash.
const STARTS: [&str; 3] = ["//", "http:/", "https:/"];

/// Returns `text` with the login of each URL in it replaced by `***`, for messages that quote the
/// user's input.
#[must_use]
pub fn without_logins(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let start = |text: &str| {
        let ends = STARTS.map(|start| Some(text.find(start)? + start.len()));
        ends.into_iter().flatten().min()
    };
    while let Some(at) = start(rest) {
        let len = rest[at..].len() - rest[at..].trim_start_matches('/').len();
        let (before, url) = rest.split_at(at + len);
        shown.push_str(before);
        let end = url.find(char::is_whitespace).unwrap_or(url.len());
        let host_end = url[..end].find(['/', '?', '#', '"', '\'']).unwrap_or(end);
        let (authority, path) = url[..end].split_at(host_end);
        let login_end = match may_end_in_login(authority, path) {
            true => url[..end].rfind('@'),
            false => authority.rfind('@'),
        };
        if login_end.is_some() {
            shown.push_str("***");
        }
        (_, rest) = url.split_at(login_end.unwrap_or(0));
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::without_logins;

    #[test]
    fn logins_are_masked_wherever_they_stand() {
        assert_eq!(
            without_logins("see http://a:b@h/x and https://h/y@z, \"ftp://c@h\""),
            "see http://***@h/x and https://h/y@z, \"ftp://***@h\""
        );
        assert_eq!(without_logins("a // b"), "a // b");
        assert_eq!(
            without_logins("\"/srv/http:/a:b@h\" https:///a:b@h"),
            "\"/srv/http:/***@h\" https:///***@h"
        );
        for generation in ["http://h:5000#mr/app@3", "http://h:5000/a#mr/app@3 is kept"] {
            assert_eq!(without_logins(generation), generation);
        }
    }
}
