//! `/`: the landing page, with the configuration that clients need.

use maud::{Markup, PreEscaped, html};

use super::assets::MARK;
use super::text::Count;

/// Content of the landing page.
#[derive(Debug)]
pub(crate) struct Landing<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    /// URL of the cache for clients; `None` if not configured. The `Host` header is not used,
    /// because an attacker can choose it.
    pub(crate) public_url: Option<&'a str>,
    /// Public keys of the signing keys.
    pub(crate) keys: &'a [String],
    pub(crate) store_dir: &'a str,
    pub(crate) priority: u32,
    /// Number of paths; `None` if it is unknown, or hidden by a policy.
    pub(crate) path_count: Option<u64>,
    /// Whether clients need a user name and a password.
    pub(crate) has_passwords: bool,
}

impl Landing<'_> {
    pub(crate) fn render(&self) -> Markup {
        html! {
            div.hero {
                (PreEscaped(MARK))
                div {
                    h1 { (self.name) }
                    p.lead {
                        @if self.description.is_empty() {
                            "A binary cache for Nix: download packages instead of building them."
                        } @else {
                            (self.description)
                        }
                    }
                }
            }
            dl.facts {
                @if let Some(count) = self.path_count {
                    div { dt { "Paths" } dd { (Count(count)) } }
                }
                div { dt { "Priority" } dd { (self.priority) } }
                div { dt { "Store" } dd { code { (self.store_dir) } } }
            }
            (self.keys_section())
            (self.use_section())
        }
    }

    fn keys_section(&self) -> Markup {
        html! {
            section aria-labelledby="keys" {
                h2 id="keys" {
                    @if self.keys.len() > 1 { "Public keys" } @else { "Public key" }
                }
                @if self.keys.is_empty() {
                    p {
                        "This cache does not sign. Paths have the signatures they were registered "
                        "with: trust the keys of their builders."
                    }
                } @else {
                    p { "Paths from this cache are signed. Clients must trust "
                        @if self.keys.len() > 1 { "one of these keys:" } @else { "this key:" }
                    }
                    (snippet("Public key", &html! { (self.keys.join("\n")) }))
                }
            }
        }
    }

    fn use_section(&self) -> Markup {
        let url = self.url();
        let keys = match self.keys {
            [] => vec!["KEY-OF-THE-BUILDER".to_owned()],
            keys => keys.to_vec(),
        };
        let quoted = keys.iter().map(|key| format!("    {}\n", nix_string(key)));
        let quoted: String = quoted.collect();
        html! {
            section aria-labelledby="use" {
                h2 id="use" { "Client setup" }
                @if self.public_url.is_none() {
                    p.without-script {
                        "Replace " code { (PLACEHOLDER) } " with the address of this page."
                    }
                }
                h3 { "Nix" }
                p { "In " code { "/etc/nix/nix.conf" } ":" }
                (snippet("nix.conf", &html! {
                    "extra-substituters = " (url) "\n"
                    "extra-trusted-public-keys = " (keys.join(" "))
                }))
                h3 { "NixOS" }
                (snippet("NixOS configuration", &html! {
                    "nix.settings = {\n"
                    "  substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }))
                h3 { "Flake" }
                (snippet("flake.nix", &html! {
                    "nixConfig = {\n"
                    "  extra-substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  extra-trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }))
                h3 { "One-off copy" }
                (snippet("Command", &html! {
                    "nix copy --from " (url) " " (self.store_dir) "/…"
                }))
                @if self.has_passwords { (self.netrc()) }
            }
        }
    }

    fn netrc(&self) -> Markup {
        html! {
            h3 { "Authentication" }
            p {
                "This cache requires a user name and a password. Nix reads them from the file set "
                "by " code { "netrc-file" } " in " code { "nix.conf" } "; the default is "
                code { "/etc/nix/netrc" } ":"
            }
            (snippet("netrc", &html! {
                "machine " (self.host()) "\n"
                "login NAME\n"
                "password PASSWORD"
            }))
        }
    }

    fn url(&self) -> Markup {
        match self.public_url {
            Some(url) => html! { (url) },
            None => html! { span data-address="url" { (PLACEHOLDER) } },
        }
    }

    fn host(&self) -> Markup {
        match self.public_url.map(host_of) {
            Some(host) => html! { (host) },
            None => html! { span data-address="host" { "ADDRESS" } },
        }
    }
}

/// Placeholder for an unknown URL. A script replaces it with the URL of the page.
const PLACEHOLDER: &str = "http://ADDRESS";

/// Extracts the host of a URL for netrc, without a port.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _port)) => address,
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Renders text with a copy button.
pub(crate) fn snippet(label: &str, text: &Markup) -> Markup {
    html! {
        figure.snippet data-label=(label) {
            figcaption { (label) }
            pre { code { (text) } }
        }
    }
}

/// Quotes a string in the Nix language.
fn nix_string(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace("${", "\\${"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        assert_eq!(host_of("https://a.example:8443/team"), "a.example");
        assert_eq!(host_of("http://[2001:db8::1]:5000"), "2001:db8::1");
        assert_eq!(host_of("http://user@b.example"), "b.example");
    }

    #[test]
    fn strings_of_nix() {
        assert_eq!(nix_string("a:b+/="), "\"a:b+/=\"");
        assert_eq!(nix_string("\"${x}\\"), "\"\\\"\\${x}\\\\\"");
    }
}
