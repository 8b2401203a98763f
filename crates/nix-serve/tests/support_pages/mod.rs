//! Reads pages of the web interface.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{OwnStore, Response, ServerProcess, local, nix_serve};

/// What a browser accepts.
pub const HTML: &str = "Accept: text/html,*/*;q=0.8";

pub fn serve(store: &OwnStore) -> ServerProcess {
    ServerProcess::start(nix_serve().args(["--pages", "--store", &local(store.root())]))
}

pub fn is_page(answer: &Response) -> bool {
    let policy = answer.header("content-security-policy").unwrap_or_default();
    answer.header("content-type") == Some("text/html; charset=utf-8")
        && policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self';")
        && answer.header("x-content-type-options") == Some("nosniff")
}

#[track_caller]
pub fn page(server: &ServerProcess, path: &str) -> String {
    let answer = server.get(path);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    assert!(is_page(&answer), "{path}: {answer:?}");
    answer.text()
}

/// Finds the `href`s of a page, unescaped as an HTML parser does.
pub fn references(page: &str) -> Vec<String> {
    let parts = page.split("href=\"").skip(1);
    let values = parts.map(|part| part.split('"').next().unwrap());
    values.map(|value| value.replace("&amp;", "&")).collect()
}

/// Resolves a relative reference against a path.
pub fn resolve(from: &str, reference: &str) -> String {
    let (reference, query) = match reference.split_once('?') {
        Some((reference, query)) => (reference, format!("?{query}")),
        None => (reference, String::new()),
    };
    let mut segments: Vec<&str> = from.split('?').next().unwrap().split('/').collect();
    if !reference.is_empty() {
        segments.pop();
        for segment in reference.split('/') {
            match segment {
                ".." => drop(segments.pop()),
                "." => {}
                segment => segments.push(segment),
            }
        }
        if reference.ends_with('.') {
            segments.push("");
        }
    }
    format!("{}{query}", segments.join("/"))
}
