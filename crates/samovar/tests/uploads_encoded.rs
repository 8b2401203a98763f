//! Names are accepted and served however their characters are encoded in the URL. Nix sends `+` as
//! `%2B` since 2.34.

mod support;
mod support_uploads;

use std::fs;

use support::secret_file;
use support_uploads::{MadePath, Site};
use testkit::nix::{Nix, OwnStore, local};
use testkit::process::output;

/// Encodes every byte but slashes.
fn encoded(path: &str) -> String {
    let byte = |byte: u8| match byte {
        b'/' => "/".to_owned(),
        byte => format!("%{byte:02x}"),
    };
    path.bytes().map(byte).collect()
}

#[test]
fn every_url_is_the_same_when_it_is_encoded() {
    let site = Site::new();
    site.configure_empty("[caches.main]\nprefix = \"/\"\n[caches.team]\nprefix = \"/te%61m+1\"\n");
    let server = site.start();
    for (cache, prefix, shown) in [("main", "", "/"), ("team", "/te%61m%2B1", "/team+1/")] {
        let token = site.token(&["--cache", cache, "--rights", "read,push,pin"]);
        let path = MadePath::new(&format!("c++-{cache}?"));
        let name = path.store_path[11..]
            .replace('+', "%2B")
            .replace('?', "%3F");
        let log = format!("/log/{name}");
        let put = |target: &str, body: &[u8]| {
            let target = format!("{prefix}{}", encoded(&format!("/upload{target}")));
            let response = server.put(&token, &target, body);
            assert_eq!(response.status, 200, "{target}: {}", response.text());
        };
        put(&path.file_target(), &path.file);
        put(&path.target(), path.narinfo().as_bytes());
        put(&log.replace("%2B", "+").replace("%3F", "?"), b"built");
        // The page of the log links to its text.
        let page = server.get(&format!("{prefix}/build-log/{name}"));
        assert_eq!(page.status, 200);
        assert!(page.text().contains(&format!("/log/{name}\"")));
        for target in [
            path.target(),
            path.file_target(),
            path.listing_target(),
            log,
        ] {
            for below in ["", "/upload"] {
                let plain = server.get(&format!("{shown}{}", &format!("{below}{target}")[1..]));
                assert_eq!(plain.status, 200, "{below}{target}");
                let whole = encoded(&format!(
                    "{below}{}",
                    target.replace("%2B", "+").replace("%3F", "?")
                ));
                let same = server.get(&format!("{prefix}{whole}"));
                assert!(same.body == plain.body, "{whole}");
                for wrong in ["%2F", "%00", "%zz", "%252B", "%"] {
                    let target = format!("{prefix}{below}{target}{wrong}");
                    for method in ["GET", "PUT"] {
                        let response = server.request(method, &target, &token);
                        assert_eq!(response.status, 404, "{method} {target}");
                    }
                }
            }
        }
        let asked = |method: &str, target: &str| {
            let target = format!("{prefix}{target}");
            let response = server.request(method, &target, &token);
            (response.status, response.text())
        };
        // A pin's name is one segment, also with slashes.
        let pin = format!("{prefix}/%75pload/pin%2D?");
        assert_eq!(asked("GET", &pin[prefix.len()..]).0, 404);
        let body = path.store_path[11..].to_owned();
        let target = format!("{prefix}/%75pload/p%69n/a%2Fb%2Bc");
        let response = server.put(&token, &target, body);
        assert_eq!(response.status, 200, "{}", response.text());
        let (status, list) = asked("GET", "/upload/pin/");
        assert!(status == 200 && list.contains("pin a%2Fb%2Bc "), "{list}");
        assert_eq!(asked("GET", "/upload/pin/a/b%2Bc").0, 400);
        // The push protocol.
        let (status, text) = asked("DELETE", &encoded("/upload/push/1/open"));
        assert_eq!(status, 405, "{text}");
        assert_eq!(asked("DELETE", "/upload/push%2F1/open").0, 405);
        assert_eq!(asked("DELETE", "/upload/push/1%00/open").0, 404);
    }
    // The prefix is compared in whole segments, too.
    for target in [
        "/te%61m%252B1/nix-cache-info",
        "/team%2B1%2Fnix-cache-info",
        "/team%2B1%00/",
    ] {
        assert_eq!(server.get(target).status, 404, "{target}");
    }
}

/// Each version of Nix pushes a derivation whose name has a `+`, and its log, and reads them again.
#[test]
fn every_nix_pushes_and_reads_a_name_with_a_plus() {
    for nix in Nix::all() {
        let site = Site::new();
        let server = site.start();
        let store = OwnStore::of(nix);
        let version = store.nix.version();
        let expression = "derivation { name = \"c++-1.0?\"; system = \"x\"; builder = \"/b\"; }";
        let drv = store.run("nix-instantiate", &["-E", expression]);
        let drv = drv.trim();
        let (folder, file) = drv[11..].split_at(2);
        let folder = store.root().join("nix/var/log/nix/drvs").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), "a log\n").unwrap();
        let token = site.token(&[]);
        let netrc = format!("machine 127.0.0.1 login nobody password {token}\n");
        let netrc = secret_file(site.dir(), "netrc", &netrc);
        let home = tempfile::tempdir().unwrap();
        let nix = |arguments: &[&str]| {
            let mut command = store.nix.command("nix", home.path());
            command
                .args(arguments)
                .args(["--option", "substituters", ""]);
            command.args(["--option", "netrc-file"]).arg(&netrc);
            output(&mut command)
        };
        let (from, url) = (local(store.root()), server.url());
        let to = format!("{url}/upload");
        nix(&["copy", "--derivation", "--from", &from, "--to", &to, drv]);
        nix(&["store", "copy-log", "--from", &from, "--to", &to, drv]);
        for url in [&url, &to] {
            let log = nix(&["log", "--store", url, drv]);
            assert_eq!(log, "a log\n", "Nix {version}, {url}");
        }
        let other = OwnStore::new();
        let back = local(other.root());
        let copy = [
            "copy",
            "--derivation",
            "--no-check-sigs",
            "--from",
            &url,
            "--to",
            &back,
        ];
        nix(&[&copy[..], &[drv]].concat());
        assert!(other.real(drv).exists(), "Nix {version}");
    }
}
