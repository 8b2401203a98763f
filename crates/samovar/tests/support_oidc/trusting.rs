//! A server that trusts an issuer of ID tokens.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use testkit::http1::Response;

use super::{AUDIENCE, Issuer, Pair};
use crate::support_push::Pusher;
use crate::support_uploads::{Running, Site, bearer, send};

/// A server that trusts an issuer.
pub(crate) struct Trusting {
    pub(crate) site: Site,
    pub(crate) server: Running,
    pub(crate) issuer: Issuer,
    pub(crate) pair: Pair,
}

impl Trusting {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// `more`: more fields of the rule, and more of the configuration after it.
    pub(crate) fn with(more: &str) -> Self {
        let pair = Pair::ec("key-1");
        let issuer = Issuer::start(&[&pair]);
        let site = Site::new();
        site.configure_empty(&issuer.configuration(more));
        let server = site.start();
        Self {
            site,
            server,
            issuer,
            pair,
        }
    }

    pub(crate) fn claims(&self) -> Value {
        self.issuer.claims("example/app", "main")
    }

    pub(crate) fn id_token(&self) -> String {
        self.pair.token(&self.claims())
    }

    pub(crate) fn exchange(&self, id_token: &str) -> Response {
        exchange(self.server.address, id_token, "")
    }

    /// Returns the token for an ID token.
    #[track_caller]
    pub(crate) fn token(&self, id_token: &str) -> String {
        token_of(&self.exchange(id_token))
    }

    /// Returns the response to a push with a token.
    pub(crate) fn open(&self, token: &str) -> Response {
        self.server.request("POST", "/upload/push/1/open", token)
    }

    /// Returns a `samovar push` command of a job with this ID token.
    pub(crate) fn push(&self, pusher: &Pusher, id_token: &str) -> Command {
        let mut command = pusher.without_token(&self.server.url());
        command
            .arg(format!("--oidc={AUDIENCE}"))
            .env("SAMOVAR_ID_TOKEN", id_token);
        command
    }
}

pub(crate) fn exchange(address: SocketAddr, id_token: &str, body: &str) -> Response {
    send(address, "POST", "/upload/oidc", &bearer(id_token), body)
}

#[track_caller]
pub(crate) fn token_of(response: &Response) -> String {
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    let line = text.strip_suffix("\nend 1\n").unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}
