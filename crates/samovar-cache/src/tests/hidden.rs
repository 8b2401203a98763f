//! A client cannot tell a cache that is hidden from it from one that does not exist.

use super::TestServer;
use crate::access::{Access, AccessConfig, RefuseWith};
use crate::{CacheConfig, PagesConfig, SiteConfig};

fn cache(path_prefix: &str) -> CacheConfig {
    CacheConfig {
        path_prefix: path_prefix.to_owned(),
        ..CacheConfig::default()
    }
}

fn with_pages(cache: CacheConfig) -> CacheConfig {
    CacheConfig {
        pages: Some(PagesConfig::default()),
        ..cache
    }
}

/// A cache for certain users and another network. It is hidden from all other clients.
fn hidden(path_prefix: &str) -> CacheConfig {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    let hash = crate::access::hash_password(b"secret").unwrap();
    std::fs::write(&users, format!("ada:{hash}\n")).unwrap();
    let config = AccessConfig {
        users_file: Some(users),
        networks: vec!["192.0.2.0/24".to_owned()],
        refuse_with: RefuseWith::NotFound,
        ..AccessConfig::default()
    };
    let (access, _) = Access::new(config).unwrap();
    CacheConfig {
        access: Some(access),
        ..cache(path_prefix)
    }
}

fn server(caches: Vec<CacheConfig>) -> TestServer {
    TestServer::with_site(SiteConfig {
        caches,
        ..SiteConfig::default()
    })
}

#[track_caller]
fn are_same(with: &TestServer, without: &TestServer) {
    let one = "Accept: text/html\r\n";
    // The user ada with a wrong password, which a worker must verify.
    let wrong = "Authorization: Basic YWRhOndyb25n\r\n";
    let body = "Content-Length: 0\r\n";
    for method in ["GET", "HEAD", "POST", "PUT"] {
        for path in [
            "/team/nix-cache-info",
            "/team/00000000000000000000000000000000.narinfo",
            "/team/nar/00000000000000000000000000000000.nar",
            "/team/narinfos",
            "/team/version",
            "/team/",
            "/team",
            "/team/x",
            "/nix-cache-info",
            "/x",
        ] {
            for fields in ["", one, wrong, body] {
                let answer = |server: &TestServer| server.request(method, path, fields).unwrap();
                let (found, expected) = (answer(with), answer(without));
                assert_eq!(found, expected, "{method} {path} {fields}");
            }
        }
    }
}

#[test]
fn a_hidden_cache_is_answered_as_if_it_did_not_exist() {
    let others = || vec![cache("/open")];
    let mut caches = others();
    caches.push(hidden("/team"));
    are_same(&server(caches), &server(others()));
}

#[test]
fn requests_for_a_hidden_cache_go_to_the_cache_with_a_shorter_prefix() {
    let others = || vec![with_pages(cache(""))];
    let mut caches = others();
    caches.push(with_pages(hidden("/team")));
    are_same(&server(caches), &server(others()));
}

#[test]
fn a_hidden_cache_at_the_root_is_answered_as_if_it_did_not_exist() {
    let others = || vec![cache("/open")];
    let mut caches = others();
    caches.push(hidden(""));
    are_same(&server(caches), &server(others()));
}

/// Beyond the limit on wrong passwords, too.
#[test]
fn wrong_passwords_for_a_hidden_cache_are_answered_as_if_it_did_not_exist() {
    use base64::Engine as _;
    let with = server(vec![cache("/open"), hidden("/team")]);
    let without = server(vec![cache("/open")]);
    for number in 0..13 {
        let login = base64::engine::general_purpose::STANDARD.encode(format!("ada:{number}"));
        let fields = format!("Authorization: Basic {login}\r\n");
        let answer = |server: &TestServer| server.request("GET", "/team/nix-cache-info", &fields);
        let (found, expected) = (answer(&with).unwrap(), answer(&without).unwrap());
        assert_eq!(found, expected, "password {number}");
    }
}
