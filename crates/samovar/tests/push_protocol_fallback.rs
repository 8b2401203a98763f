//! `samovar push` sends the requests of a stock Nix client to a server that does not support the
//! push protocol.

mod support;
mod support_push;
mod support_uploads;

use support::{sample, sample_root, sample_store};
use support_push::proxy::{Action, Proxy};
use support_push::{Pusher, assert_copies_back, closure, count, exits_with, words};
use support_uploads::Site;
use testkit::process::output;

#[test]
fn servers_without_the_protocol_get_the_requests_of_a_stock_client() {
    for status in [404, 405, 501] {
        let site = Site::new();
        let server = site.start();
        let proxy = Proxy::start(server.address, move |line| {
            match line.contains("/upload/push/") {
                true => Action::Refuse(status),
                false => Action::Forward,
            }
        });
        let path = [sample("text")];
        let pusher = Pusher::new(&sample_store(), &site.token(&[]));
        let report = pusher.report(&proxy.url(), &words(&path));
        let paths = closure(&sample_root(), &path).len();
        assert_eq!(count(&report, "pushed"), paths);
        assert_eq!(report["pushProtocol"], false);
        assert!(!proxy.exchanges(".narinfo").is_empty());
        assert_copies_back(&server.url(), &site.public_key, &sample_root(), &path);
        let text = output(&mut pusher.push(&proxy.url(), &words(&path)));
        assert!(text.contains(" requests of nix copy in "), "{text}");
    }
}

#[test]
fn a_refused_token_is_no_reason_for_the_stock_sequence() {
    let site = Site::new();
    let server = site.start();
    let proxy = Proxy::start(server.address, |_| Action::Forward);
    for token in ["smv1_wrong", &site.token(&["--rights", "read"])] {
        let pusher = Pusher::new(&sample_store(), token);
        let text = exits_with(&mut pusher.push(&proxy.url(), &[&sample("text")]), 1);
        assert!(text.contains("the cache refused the push: 40"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert!(proxy.exchanges("PUT").is_empty());
    assert!(site.files().is_empty());
}
