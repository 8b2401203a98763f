//! `/`: what this cache is, and what a client writes down to use it.

use maud::{Markup, PreEscaped, html};

use super::assets::MARK;
use super::text::Count;

/// What the page of a cache says of it.
#[derive(Debug)]
pub(crate) struct Landing<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    /// The URL that clients shall use. `None`: it is not known here, and what a client said it was
    /// is not believed, for somebody else may have made him say it.
    pub(crate) public_url: Option<&'a str>,
    /// Of those that sign here.
    pub(crate) keys: &'a [String],
    pub(crate) store_dir: &'a str,
    pub(crate) priority: u32,
    /// `None`: not known, or not to be said.
    pub(crate) path_count: Option<u64>,
    /// Whether clients have to say who they are with a name and a password.
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
                            "A binary cache for Nix: what was built once is fetched, not built "
                            "again."
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
                        "This cache signs nothing itself. Paths come with the signatures they were "
                        "registered with, so trust the keys of those who built them."
                    }
                } @else {
                    p { "What comes from here is signed. A client takes it if it trusts "
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
            [] => vec!["KEY-OF-WHO-BUILT-IT".to_owned()],
            keys => keys.to_vec(),
        };
        let quoted = keys.iter().map(|key| format!("    {}\n", nix_string(key)));
        let quoted: String = quoted.collect();
        html! {
            section aria-labelledby="use" {
                h2 id="use" { "Use it" }
                @if self.public_url.is_none() {
                    p.without-script {
                        "Put the address by which you reached this page in place of "
                        code { (PLACEHOLDER) } "."
                    }
                }
                h3 { "On any machine with Nix" }
                p { "In " code { "/etc/nix/nix.conf" } ":" }
                (snippet("nix.conf", &html! {
                    "extra-substituters = " (url) "\n"
                    "extra-trusted-public-keys = " (keys.join(" "))
                }))
                h3 { "On NixOS" }
                (snippet("NixOS configuration", &html! {
                    "nix.settings = {\n"
                    "  substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }))
                h3 { "In a flake" }
                (snippet("flake.nix", &html! {
                    "nixConfig = {\n"
                    "  extra-substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  extra-trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }))
                h3 { "Once, by hand" }
                (snippet("Command", &html! {
                    "nix copy --from " (url) " " (self.store_dir) "/…"
                }))
                @if self.has_passwords { (self.netrc()) }
            }
        }
    }

    fn netrc(&self) -> Markup {
        html! {
            h3 { "Who you are" }
            p {
                "This cache asks for a name and a password. Nix takes them from the file that "
                code { "netrc-file" } " in " code { "nix.conf" } " names, "
                code { "/etc/nix/netrc" } " unless it says otherwise:"
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

/// Stands for a URL that is not known; a script puts in the one of the page.
const PLACEHOLDER: &str = "http://ADDRESS";

/// The name or address in a URL, as netrc wants it: without a port.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _port)) => address,
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Text to take along.
pub(crate) fn snippet(label: &str, text: &Markup) -> Markup {
    html! {
        figure.snippet data-label=(label) {
            figcaption { (label) }
            pre { code { (text) } }
        }
    }
}

/// A string of the Nix language.
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
