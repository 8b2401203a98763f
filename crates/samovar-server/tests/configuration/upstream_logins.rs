//! A login in the URL of an upstream is in no message, and not in the shown configuration.

use std::path::Path;

use proptest::prelude::*;
use samovar_server::config::{ConfigError, Origin, Settings, Value, read, show};

/// A part of each login.
const SECRET: &str = "hunter2";

/// The places where a URL can be set, rightly or by mistake.
const PLACE_COUNT: usize = 14;

/// Sets the URL at a place.
fn set(url: &str, place: usize, more: &str) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    let origin = || Origin::Option("set".to_owned());
    let quoted = Value::Text(url.to_owned()).to_string();
    let file = match place {
        0 => format!("[upstreams.a]\nurl = {quoted}\n"),
        1 => format!("upstream = {quoted}\n"),
        2 => format!("upstream = [{quoted}, \"https://cache.nixos.org\"]\n"),
        3 => format!("upstreams.a.url = [{quoted}]\n"),
        4 => format!("upstream = {{ a = {{ url = {quoted} }} }}\n"),
        5 => format!("upstreams.a = {quoted}\n"),
        6 => format!("upstreams.{quoted}.url = \"https://cache.nixos.org\"\n"),
        7 => format!("caches.a.upstreams = [{quoted}]\n"),
        8 => format!("caches.a.url = {quoted}\n[upstreams.a]\nurl = \"{url}\"\n"),
        9 => format!("[upstreams.a]\nurl = {url}\n"),
        _ => String::new(),
    };
    settings.add_text(Path::new("samovar.toml"), &format!("{file}{more}"))?;
    let variable = |name: &str| [(name.to_owned(), url.to_owned())];
    match place {
        10 => settings.add_variables(variable("SAMOVAR_UPSTREAM"), &[])?,
        11 => settings.add_variables(variable("SAMOVAR_UPSTREAMS__A__URL"), &[])?,
        12 => settings.set("upstreams.a.url", url, origin())?,
        13 => settings.set_list("upstream", [url.to_owned()], origin())?,
        _ => {}
    }
    Ok(settings)
}

/// Returns everything that is printed for these settings.
fn printed(settings: Result<Settings, ConfigError>) -> String {
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return error.to_string(),
    };
    match read(&settings, |_| None) {
        Ok(config) => format!("{}{:?}", show(&settings, &config), config.remarks),
        Err(error) => error.to_string(),
    }
}

fn url() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        4 => Just("https://"),
        1 => Just("http://"),
        1 => Just("HTTPS://"),
        1 => Just("ftp://"),
        1 => Just("https:/"),
        1 => Just("//"),
        1 => Just(""),
    ];
    let any = || prop_oneof![3 => "[a-z:%.]{0,4}", 1 => "[ -~\\n\\t\u{e9}]{0,4}"];
    let rest = prop_oneof![
        4 => Just("cache.nixos.org".to_owned()),
        1 => Just("cache.example.org:8080/team/".to_owned()),
        2 => "[ -~\\n\u{e9}]{0,12}",
    ];
    (scheme, any(), any(), any(), rest).prop_map(|(scheme, user, before, after, rest)| {
        format!("{scheme}{user}:{before}{SECRET}{after}@{rest}")
    })
}

proptest! {
    #[test]
    fn no_output_contains_the_login_of_an_upstream(
        url in url(),
        place in 0..PLACE_COUNT,
        more in prop_oneof![
            Just(""),
            Just("unsigned = true\n"),
            Just("[upstreams.b]\nurl = \"https://cache.nixos.org\"\n"),
        ],
    ) {
        let text = printed(set(&url, place, more));
        prop_assert!(!text.contains(SECRET), "{url:?} at {place}: {text}");
    }
}

/// The places are read, so that the test above tests what it means to.
#[test]
fn valid_urls_are_read_at_each_right_place() {
    let url = format!("https://ada:{SECRET}@cache.nixos.org");
    for place in [0, 1, 10, 11, 12, 13] {
        let settings = set(&url, place, "").unwrap();
        let config = read(&settings, |_| None).unwrap();
        assert_eq!(config.upstreams[0].url, url, "{place}");
        let shown = show(&settings, &config);
        assert!(shown.contains("https://***@cache.nixos.org"), "{shown}");
    }
}
