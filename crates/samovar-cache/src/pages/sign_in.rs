//! The page that a browser shows if its user does not sign in, or has no valid password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, PreEscaped, html};
use samovar_http::Response;
use samovar_http::http::Status;
use sha2::{Digest, Sha256};

use super::assets::{MARK, base_style};
use super::frame::NAME;

/// Renders the page. `challenge` is the value of `WWW-Authenticate`. The page contains all that it
/// needs, because the style sheet of the cache needs credentials too.
pub(crate) fn page(challenge: &str) -> Response {
    let style = base_style();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { "Not signed in · " (NAME) }
                style { (PreEscaped(style)) }
            }
            body {
                header { span.home { (PreEscaped(MARK)) span { (NAME) } } }
                main {
                    h1 { "Not signed in" }
                    p {
                        "This cache is for users with a name and a password, or with a token as "
                        "the password. " a href="" { "Load this page again" } ", and your browser "
                        "asks for them. If you have none, ask the operator of the cache."
                    }
                    p {
                        "Nix reads the name and the password from the file that "
                        code { "netrc-file" } " in " code { "nix.conf" } " names, by default "
                        code { "/etc/nix/netrc" } ". After you have signed in, the first page of "
                        "the cache shows what to enter."
                    }
                }
            }
        }
    };
    let hash = STANDARD.encode(Sha256::digest(style));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    Response::new(Status::UNAUTHORIZED, page.0)
        .header("Content-Type", "text/html; charset=utf-8")
        .header("WWW-Authenticate", challenge)
        .header("Content-Security-Policy", policy)
        .header("X-Content-Type-Options", "nosniff")
        .header("Cache-Control", "no-store")
}
