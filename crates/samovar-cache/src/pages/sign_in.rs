//! The page that a browser shows if its user does not sign in, or has no valid password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, PreEscaped, html};
use samovar_http::Response;
use samovar_http::http::Status;
use sha2::{Digest, Sha256};

/// The style, within the page: the style sheet of the cache needs credentials too.
const STYLE: &str = "body{max-width:40rem;margin:10vh auto;padding:0 1.25rem;\
    font:1rem/1.6 system-ui,sans-serif;background:Canvas;color:CanvasText}\
    code{overflow-wrap:anywhere}";

/// Renders the page. `challenge` is the value of `WWW-Authenticate`.
pub(crate) fn page(challenge: &str) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { "Sign in" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                h1 { "Sign in" }
                p {
                    "This cache needs a user name and a password, or a token as the password. "
                    a href="" { "Try again" } " to enter them. The operator of the cache can give "
                    "you an account."
                }
                p {
                    "Nix reads the name and the password from the file that " code { "netrc-file" }
                    " in " code { "nix.conf" } " names, by default " code { "/etc/nix/netrc" }
                    ". After you have signed in, the first page of the cache shows what to enter."
                }
            } }
        }
    };
    let hash = STANDARD.encode(Sha256::digest(STYLE));
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
