//! With `admin.on-cache`, the address of the cache serves metrics to the readers of the cache at
//! the root, and health to all clients. Other clients get no metrics.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::net::SocketAddr;

use support::{samovar, user};
use support_uploads::{Running, Site};
use testkit::http1::{Connection, Response};
use testkit::process::{Process, fails};

const HEALTH: [&str; 3] = ["/health", "/healthz", "/readyz"];

/// The password of the user ada is secret.
const LOGIN: &str = "Authorization: Basic YWRhOnNlY3JldA==";

/// Starts a server of an empty store. `admin`: options of the admin listener.
fn serve(site: &Site, admin: &str, more: &str) -> Running {
    site.configure_empty(more);
    let text = fs::read_to_string(site.config()).unwrap();
    let text = text.replace("admin.listen = []\n", admin);
    fs::write(site.config(), text).unwrap();
    site.start()
}

fn get(server: &Running, target: &str, fields: &[&str]) -> Response {
    Connection::connect(server.address).get_and_head(target, fields)
}

/// Requests the metrics and checks them.
#[track_caller]
fn assert_has_metrics(address: SocketAddr, fields: &[&str]) {
    let response = Connection::connect(address).request("GET", "/metrics", fields);
    if !fields.is_empty() {
        assert!(
            response
                .headers("Cache-Control")
                .any(|value| value == "private")
        );
    }
    assert_eq!(response.status, 200);
    let media_type = response.header("Content-Type").unwrap();
    assert!(media_type.starts_with("text/plain; version=0.0.4"));
    assert!(
        response.text().contains("\nsamovar_"),
        "{}",
        response.text()
    );
}

#[test]
fn metrics_and_health_are_served_if_configured() {
    let site = Site::new();
    for admin in ["admin.listen = []\n", "admin.listen = \"127.0.0.1:0\"\n"] {
        let server = serve(&site, admin, "pages = false\n");
        for target in HEALTH.into_iter().chain(["/metrics"]) {
            assert_eq!(get(&server, target, &[]).status, 404, "{target}");
        }
        drop(server);
        let server = serve(
            &site,
            &format!("{admin}admin.on-cache = true\n"),
            "pages = false\n",
        );
        for target in HEALTH {
            assert_eq!(get(&server, target, &[]).status, 200, "{target}");
        }
        assert_has_metrics(server.address, &[]);
        for other in ["/metrics/", "/status", "/status.json", "/metrics/x"] {
            assert_eq!(get(&server, other, &[]).status, 404, "{other}");
        }
    }
}

#[test]
fn an_address_that_is_in_use_takes_no_metrics_from_the_cache() {
    let site = Site::new();
    let taken = serve(&site, "", "");
    let again = Site::new();
    let server = serve(&again, "admin.on-cache = true\n", "");
    assert_has_metrics(server.address, &[]);
    drop(taken);
}

#[test]
fn metrics_need_the_rights_of_a_reader_of_the_root() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    let on = "admin.listen = []\nadmin.on-cache = true\n";
    let private = format!("access.users-file = {users:?}\n");
    let server = serve(&site, on, &private);
    for target in HEALTH {
        assert_eq!(get(&server, target, &[]).status, 200, "{target}");
    }
    for _ in 0..2 {
        let refused = Connection::connect(server.address).get("/metrics");
        assert_eq!(refused.status, 401);
        assert!(!refused.text().contains("samovar_"));
        assert_has_metrics(server.address, &[LOGIN]);
    }
    drop(server);
    // Readers of another cache do not see them.
    let caches = format!(
        "[caches.main]\nprefix = \"/\"\n{private}[caches.team]\n\
         access.networks = [\"127.0.0.0/8\"]\n"
    );
    let server = serve(&site, on, &caches);
    assert_eq!(get(&server, "/team/nix-cache-info", &[]).status, 200);
    assert_eq!(
        Connection::connect(server.address)
            .get("/team/metrics")
            .status,
        404
    );
    assert_eq!(
        Connection::connect(server.address).get("/metrics").status,
        401
    );
    assert_has_metrics(server.address, &[LOGIN]);
}

#[test]
fn configurations_that_would_open_the_metrics_are_refused() {
    let site = Site::new();
    for (caches, parts) in [
        (
            "[caches.team]\n",
            ["needs a cache with the prefix /", "admin.listen"],
        ),
        (
            "[caches.main]\nprefix = \"/\"\n[caches.team]\naccess.networks = [\"10.0.0.0/8\"]\n",
            [
                "the cache team, which has access rules",
                "the cache main has none",
            ],
        ),
    ] {
        site.configure_empty(&format!("admin.on-cache = true\n{caches}"));
        let text = fails(samovar().args(site.arguments()));
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn metrics_of_the_cache_survive_a_reload() {
    let site = Site::new();
    site.configure_empty("admin.on-cache = true\n");
    let mut serve = samovar();
    let (server, address) = Process::serving(serve.args(site.arguments()));
    server.signal("HUP");
    server.wait_for("the configuration was ");
    assert_has_metrics(address, &[]);
}
