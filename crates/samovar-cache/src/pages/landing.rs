//! `/`: the landing page, with the configuration that clients need.

use maud::{Markup, PreEscaped, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::StorePath;
use samovar_storage::metadata::caches;

use super::assets::MARK;
use super::recent::{recent_paths, recent_section};
use super::text::{Age, Count};
use super::{PagedCache, PagesConfig, View};

/// Renders the landing page.
pub(super) fn page(view: &View<'_>) -> Response {
    let config = view.cache.config;
    let store = view.reader().store();
    // A policy hides paths, so their number is not shown either.
    let is_open = view.reader().policy.is_open();
    let snapshot = is_open.then(|| view.reader().shared.refresh()).flatten();
    // If the number cannot be read, the rest of the page is still right.
    let stored = view.cache.stored.filter(|_| is_open);
    let uploaded =
        stored.and_then(|stored| caches::path_count(stored.metadata(), stored.id()).ok());
    let keys = view.cache.narinfos.signing.public_keys();
    let upstream_keys = view.cache.upstream_keys();
    let recent = recent_paths(view.reader());
    let main = html! {
        div.hero {
            (PreEscaped(MARK))
            div {
                h1 { (view.name()) }
                p.lead {
                    @if config.description.is_empty() {
                        "A binary cache for Nix: download packages instead of building them."
                    } @else {
                        (config.description)
                    }
                }
            }
        }
        dl.facts {
            @if let Some(snapshot) = snapshot {
                div { dt { "Paths" } dd { (Count(snapshot.path_count() as u64)) } }
            }
            @if let Some(newest) = recent.first() {
                div { dt { "Newest path" } dd { (Age::of(newest.registration_time)) } }
            }
            div { dt { "Priority" } dd { (view.cache.priority) } }
            div { dt { "Store" } dd { code { (store.store_dir()) } } }
            @if view.cache.stored.is_some() {
                div {
                    dt { "Uploads" }
                    dd { a href=(view.base.to("uploads")) {
                        @match uploaded {
                            Some(count) => { (Count(count).of("path")) },
                            None => "Recent",
                        }
                    } }
                }
            }
        }
        (keys_section(&keys, &upstream_keys))
        (use_section(view, &view.cache.client_keys()))
        @if view.cache.stored.is_some() { (push_section(view.cache.config)) }
        (recent_section(view.base, &recent))
    };
    view.page("", "landing", main).response(Status::OK)
}

fn use_section(view: &View<'_>, keys: &[String]) -> Markup {
    let url = url(view.cache.config);
    let placeholder = ["KEY-OF-THE-BUILDER".to_owned()];
    let is_signing = !keys.is_empty();
    let keys = if is_signing { keys } else { &placeholder };
    let quoted = keys.iter().map(|key| format!("    {}\n", nix_string(key)));
    let quoted: String = quoted.collect();
    html! {
        section aria-labelledby="use" {
            h2 id="use" { "Client setup" }
            @if view.cache.config.public_url.is_none() {
                p.without-script {
                    "Replace " code { (PLACEHOLDER) } " with the address of this page."
                }
            }
            (tabs("Setup for", "tab", [
                ("Nix", "/etc/nix/nix.conf", html! {
                    "extra-substituters = " (url) "\n"
                    "extra-trusted-public-keys = " (keys.join(" "))
                }),
                ("NixOS", "NixOS configuration", html! {
                    "nix.settings = {\n"
                    "  substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }),
                ("Flake", "flake.nix", html! {
                    "nixConfig = {\n"
                    "  extra-substituters = [\n    \"" (url) "\"\n  ];\n"
                    "  extra-trusted-public-keys = [\n" (quoted) "  ];\n"
                    "};"
                }),
                ("samovar use", USE_LABEL, html! {
                    "samovar use"
                    @if !is_signing { " --key " (shell_word(&placeholder[0])) }
                    " " (url)
                }),
                ("One-off copy", ONE_OFF_LABEL, copy(&view.cache, "PATH")),
            ]))
            @if view.cache.config.has_passwords { (netrc(view.cache.config)) }
        }
    }
}

fn push_section(config: &PagesConfig) -> Markup {
    let url = url(config);
    html! {
        section aria-labelledby="push" {
            h2 id="push" { "Push" }
            p {
                "A client that uploads paths needs a token with the right push, which the "
                "operator of the cache can give you."
            }
            (tabs("Push with", "push", [
                ("samovar push", "command, with the token in the file TOKEN", html! {
                    "samovar push --token-file TOKEN " (url) " ./result"
                }),
                ("nix copy", "command, with the token in the netrc file", html! {
                    "nix --extra-experimental-features nix-command copy \\\n"
                    "  --to '" (url) "/upload?compression=zstd' \\\n"
                    "  ./result"
                }),
                ("Token of nix copy", "/etc/nix/netrc", html! {
                    "machine " (host(config)) " login NAME password TOKEN"
                }),
            ]))
        }
    }
}

/// Renders the command that copies a path into the store of the client.
pub(super) fn copy_command(cache: &PagedCache<'_>, path: &StorePath) -> Markup {
    copy(cache, &path.full(cache.reader().store().store_dir()))
}

fn copy(cache: &PagedCache<'_>, path: &str) -> Markup {
    let keys = cache.client_keys().join(" ");
    html! {
        "nix --extra-experimental-features nix-command copy \\\n"
        "  --from " (url(cache.config)) " \\\n"
        @if !keys.is_empty() {
            "  --option extra-trusted-public-keys \\\n    " (shell_word(&keys)) " \\\n"
        }
        "  " (shell_word(path))
    }
}

fn netrc(config: &PagesConfig) -> Markup {
    html! {
        h3 { "Authentication" }
        p {
            "This cache requires a user name and a password. Nix reads them from the file set "
            "by " code { "netrc-file" } " in " code { "nix.conf" } "; the default is "
            code { "/etc/nix/netrc" } ":"
        }
        (snippet("netrc", &html! {
            "machine " (host(config)) "\n"
            "login NAME\n"
            "password PASSWORD"
        }))
    }
}

/// Renders the URL of the cache. If none is configured, a script inserts the URL of the page. The
/// `Host` header is not used, because an attacker can choose it.
fn url(config: &PagesConfig) -> Markup {
    match &config.public_url {
        Some(url) => html! { (url) },
        None => html! { span data-address="url" { (PLACEHOLDER) } },
    }
}

fn host(config: &PagesConfig) -> Markup {
    match config.public_url.as_deref().map(host_of) {
        Some(host) => html! { (host) },
        None => html! { span data-address="host" { "ADDRESS" } },
    }
}

fn keys_section(keys: &[String], upstream_keys: &[String]) -> Markup {
    html! {
        section aria-labelledby="keys" {
            h2 id="keys" {
                @if keys.len() > 1 { "Public keys" } @else { "Public key" }
            }
            @if keys.is_empty() {
                p {
                    "This cache does not sign. Paths have the signatures they were registered "
                    "with: trust the keys of their builders."
                }
            } @else {
                p { "Paths from this cache are signed. Clients must trust "
                    @if keys.len() > 1 { "one of these keys:" } @else { "this key:" }
                }
                (snippet("Public key", &html! { (keys.join("\n")) }))
            }
            @if !upstream_keys.is_empty() {
                p {
                    "Paths of upstream caches have the signatures of those caches. Clients must "
                    "trust these keys, too:"
                }
                (snippet("Public keys of upstream caches", &html! {
                    (upstream_keys.join("\n"))
                }))
            }
        }
    }
}

/// Label of the command that sets up a client.
const USE_LABEL: &str = "command, which asks before it trusts the key";

/// Label of the command that copies one path.
const ONE_OFF_LABEL: &str = "command, with a store path in place of PATH";

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

/// Renders snippets of which one is shown at a time, each with the name of its tab and a label. The
/// tabs are radio buttons, which need no script. No other tabs have the same `id`. The style
/// sheet knows up to five tabs.
fn tabs<const COUNT: usize>(name: &str, id: &str, tabs: [(&str, &str, Markup); COUNT]) -> Markup {
    html! {
        fieldset.tabs {
            legend.unseen { (name) }
            @for (index, (tab, _, _)) in tabs.iter().enumerate() {
                input type="radio" name=(id) id={ (id) "-" (index) } checked[index == 0];
                label for={ (id) "-" (index) } { (tab) }
            }
            @for (_, label, text) in &tabs { (snippet(label, text)) }
        }
    }
}

/// Quotes a word for a shell, if it needs that.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_+:=".contains(&byte);
    match text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
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
    fn the_host_of_a_url_has_no_port_and_no_user() {
        assert_eq!(host_of("https://a.example:8443/team"), "a.example");
        assert_eq!(host_of("http://[2001:db8::1]:5000"), "2001:db8::1");
        assert_eq!(host_of("http://user@b.example"), "b.example");
    }

    #[test]
    fn words_of_a_command_are_quoted_if_necessary() {
        assert_eq!(shell_word("/nix/store/x-a+b"), "/nix/store/x-a+b");
        assert_eq!(shell_word("a?b"), "'a?b'");
        assert_eq!(shell_word("k-1:A= k-2:B="), "'k-1:A= k-2:B='");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
    }

    #[test]
    fn nix_strings_are_escaped() {
        assert_eq!(nix_string("a:b+/="), "\"a:b+/=\"");
        assert_eq!(nix_string("\"${x}\\"), "\"\\\"\\${x}\\\\\"");
    }
}
