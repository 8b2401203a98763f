//! Upstream caches: tables `[upstreams.NAME]`, the option `upstream`, and which cache uses them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use samovar_server::config::{CacheSettings, Configuration, Origin, Settings, read, show};
use samovar_upstream::settings::{Resign, UpstreamSettings, WhenDown};

use super::{PUBLIC_KEY, configuration, refused};

const NIXOS: &str = "https://cache.nixos.org";

/// The table of an upstream with a key.
fn team(lines: &str) -> String {
    format!(
        "[upstreams.team]\nurl = \"https://cache.example.org/team\"\npublic-keys = \
         [{PUBLIC_KEY:?}]\n{lines}"
    )
}

#[track_caller]
fn remarks(file: &str) -> Vec<String> {
    configuration(file).unwrap().remarks
}

fn names(config: &Configuration) -> Vec<&str> {
    let upstreams = config.upstreams.iter();
    upstreams.map(|upstream| &*upstream.name).collect()
}

#[test]
fn all_options_of_an_upstream_are_read() {
    let config = configuration(&format!(
        r#"
        upstream-memory = "1 MiB"
        secret-key-files = "/key"
        [caches.main]
        prefix = "/"
        upstreams = ["team"]
        upstream-budget = "50ms"
        upstream-down = "error"
        negative-ttl = 0
        [caches.other]
        upstreams = []
        [upstreams.team]
        url = "HTTPS://ada:s3cret@Cache.Example.org:443/team/"
        public-keys = [{PUBLIC_KEY:?}]
        priority = 10
        netrc-file = "/netrc"
        resign = "add"
        timeout = "100 ms"
        [upstreams.nixos]
        url = "{NIXOS}"
        "#
    ));
    let config = config.unwrap();
    let key = samovar_nix::PublicKey::parse(PUBLIC_KEY).unwrap();
    let team = UpstreamSettings {
        public_keys: vec![key],
        priority: 10,
        netrc_file: Some(PathBuf::from("/netrc")),
        resign: Resign::Add,
        timeout: Duration::from_millis(100),
        ..UpstreamSettings::new(
            "team".to_owned(),
            "https://ada:s3cret@cache.example.org/team".to_owned(),
        )
    };
    // The key of this cache is known.
    let known = UpstreamSettings::known_key(NIXOS).unwrap();
    let nixos = UpstreamSettings {
        public_keys: vec![samovar_nix::PublicKey::parse(known).unwrap()],
        ..UpstreamSettings::new("nixos".to_owned(), NIXOS.to_owned())
    };
    assert_eq!(config.upstreams, [nixos, team]);
    assert_eq!(config.upstream_memory_len, 1 << 20);
    let [main, other] = &*config.caches else {
        panic!("two caches")
    };
    assert_eq!(main.upstreams, Some(vec!["team".to_owned()]));
    assert_eq!(main.upstream_budget, Duration::from_millis(50));
    assert_eq!(main.upstream_down, WhenDown::Error);
    assert_eq!(main.negative_ttl, Duration::ZERO);
    assert_eq!(other.upstreams, Some(Vec::new()));
    assert_eq!(other.upstream_budget, Duration::from_secs(2));
    assert_eq!(other.upstream_down, WhenDown::Miss);
    assert_eq!(other.negative_ttl, Duration::from_secs(60));
    let uses = |cache: &CacheSettings| {
        let upstreams = config.upstreams.iter();
        upstreams.filter(|upstream| cache.uses(upstream)).count()
    };
    assert_eq!((uses(main), uses(other)), (1, 0));
}

#[test]
fn upstreams_can_be_set_in_the_environment_and_on_the_command_line() {
    let mut by_variable = Settings::default();
    let variables = [
        ("SAMOVAR_UPSTREAM", NIXOS),
        ("SAMOVAR_UPSTREAMS__TEAM_A__URL", "https://a"),
        ("SAMOVAR_UPSTREAMS__TEAM_A__PUBLIC_KEYS", PUBLIC_KEY),
        ("SAMOVAR_UPSTREAMS__TEAM_A__PRIORITY", "7"),
        ("SAMOVAR_CACHES__MAIN__UPSTREAMS", "team-a cache.nixos.org"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    by_variable.add_variables(variables, &[]).unwrap();
    let mut by_option = Settings::default();
    let option = |name: &str| Origin::Option(name.to_owned());
    by_option
        .set_list("upstream", [NIXOS.to_owned()], option("upstream"))
        .unwrap();
    for (name, value) in [
        ("upstreams.team-a.url", "https://a"),
        ("upstreams.team-a.public-keys", PUBLIC_KEY),
        ("upstreams.team-a.priority", "7"),
        ("caches.main.upstreams", "team-a cache.nixos.org"),
    ] {
        by_option.set(name, value, option("set")).unwrap();
    }
    let config = read(&by_variable, |_| None).unwrap();
    assert_eq!(names(&config), ["cache.nixos.org", "team-a"]);
    assert_eq!(config.upstreams[1].priority, 7);
    assert_eq!(config, read(&by_option, |_| None).unwrap());
    let text = show(&by_option, &config);
    let line = "upstreams.team-a.url = \"https://a\"  # --set\n";
    assert!(text.contains(line), "{text}");
    let mut again = Settings::default();
    again.add_text(Path::new("shown"), &text).unwrap();
    assert_eq!(read(&again, |_| None).unwrap().upstreams, config.upstreams);
}

/// Only known keys need no table, so the names are tested with the URLs of one cache.
#[test]
fn an_upstream_of_a_url_has_the_name_of_its_host() {
    let of = |file: &str| {
        let config = configuration(file).unwrap();
        let names = config.upstreams.into_iter().map(|upstream| upstream.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(of(&format!("upstream = \"{NIXOS}/\"")), ["cache.nixos.org"]);
    let both = of("upstream = [\"https://cache.nixos.org\", \"http://cache.nixos.org\"]");
    assert_eq!(both, ["http://cache.nixos.org", "https://cache.nixos.org"]);
}

#[test]
fn an_upstream_needs_a_url() {
    refused(
        "\n[upstreams.team]\n",
        "samovar.toml:2: upstreams.team has no url: set upstreams.team.url, or remove the table",
    );
    refused(
        "[upstreams]\nteam.priority = 1",
        "samovar.toml:2: upstreams.team has no url: set upstreams.team.url, or remove the table",
    );
    refused(
        "upstreams.team = \"https://a\"",
        "samovar.toml:1: unknown option `upstreams.team`: it is an upstream; set one of its \
         options, such as upstreams.team.url",
    );
}

#[test]
fn urls_that_are_none_of_a_cache_are_refused() {
    let url = "a URL that begins with http:// or https://";
    for (text, expected) in [
        ("", url.to_owned()),
        ("cache.example.org", url.to_owned()),
        (
            "https://a?priority=1",
            format!("{url}, without the part from ? or # on"),
        ),
        (
            "https://a:x",
            format!("{url}, followed by a host, and maybe a port"),
        ),
    ] {
        refused(
            &format!("[upstreams.a]\nurl = {text:?}"),
            &format!("samovar.toml:2: upstreams.a.url must be {expected}, got {text:?}"),
        );
    }
    refused(
        "upstream = [\"https://a\", \"b\"]",
        &format!("samovar.toml:1: upstream must be {url}, got [\"https://a\", \"b\"]"),
    );
    refused(
        "[upstream.nixos]\nurl = \"https://a\"",
        "samovar.toml:1: upstream must be a list of URLs; a table of upstreams is called \
         upstreams, got { nixos = { url = \"https://a\" } }",
    );
}

#[test]
fn an_upstream_without_a_key_is_refused() {
    let how = "to the key on the web page of the cache, which `samovar use --print \
               https://cache.example.org` shows, too; or set unsigned = true to pass on unverified \
               narinfos";
    for keys in ["", "public-keys = []\n"] {
        refused(
            &format!("[upstreams.a]\n{keys}url = \"https://u:p@cache.example.org\""),
            &format!(
                "samovar.toml:1: upstreams.a has no public key, so its narinfos cannot be \
                 verified: set upstreams.a.public-keys {how}"
            ),
        );
    }
    refused(
        "upstream = [\"https://cache.example.org\"]",
        "samovar.toml:1: upstream names https://cache.example.org, whose public key is not known: \
         set upstreams.NAME.url and upstreams.NAME.public-keys instead, with a name of your choice \
         and the key on the web page of the cache, which `samovar use --print \
         https://cache.example.org` shows, too",
    );
    // The known key is only a default.
    assert!(
        configuration(&format!(
            "[upstreams.a]\nurl = \"{NIXOS}\"\npublic-keys = []"
        ))
        .is_err()
    );
}

#[test]
fn buckets_are_named_as_such() {
    let is_bucket = |rest: &str| {
        let file = format!("[upstreams.a]\nurl = \"{NIXOS}\"\n{rest}");
        configuration(&file).unwrap().upstreams[0].is_bucket
    };
    assert!(!is_bucket("") && is_bucket("bucket = true"));
    refused(
        &format!("[upstreams.a]\nurl = \"{NIXOS}\"\nbucket = 403"),
        "samovar.toml:3: upstreams.a.bucket must be true or false, got 403",
    );
}

#[test]
fn sources_have_one_order_and_are_there() {
    let all = ["nix-store", "storage", "upstreams"];
    let upstream = format!("[upstreams.a]\nurl = \"{NIXOS}\"\n");
    for mask in 1..8 {
        let has = |index: usize| mask & (1 << index) != 0;
        let names = (0..3).filter(|index| has(*index)).map(|index| all[index]);
        let names: Vec<&str> = names.collect();
        let file = format!("sources = {names:?}\nstorage = \"/srv\"\n{upstream}");
        let cache = &configuration(&file).unwrap().caches[0];
        let found = [
            cache.sources.nix_store,
            cache.sources.storage,
            cache.sources.upstreams,
        ];
        assert_eq!(found, [has(0), has(1), has(2)], "{names:?}");
        assert_eq!(cache.policy.hides_store, !has(0), "{names:?}");
    }
    for wrong in [
        "[]",
        "[\"store\"]",
        "[\"storage\", \"storage\"]",
        "[\"upstreams\", \"nix-store\"]",
    ] {
        refused(
            &format!("sources = {wrong}\n{upstream}"),
            &format!(
                "samovar.toml:1: sources must be a list with one or more of \"nix-store\", \
                 \"storage\" and \"upstreams\", each once and in this order, got {wrong}"
            ),
        );
    }
    refused(
        "sources = [\"upstreams\"]",
        "sources = [\"upstreams\"] requires an upstream",
    );
    refused(
        &format!("{upstream}[caches.m]\nsources = [\"upstreams\"]\nupstreams = []"),
        "sources = [\"upstreams\"] of the cache m requires an upstream",
    );
    refused(
        &format!("sources = [\"storage\"]\n{upstream}"),
        "sources = [\"storage\"] requires storage",
    );
    assert!(configuration("sources = [\"nix-store\", \"upstreams\"]").is_ok());
}

#[test]
fn unsigned_upstreams_are_remarked() {
    let file = "[upstreams.a]\nurl = \"http://a\"\nunsigned = true\n";
    assert!(configuration(file).unwrap().upstreams[0].is_unsigned);
    let found = remarks(file);
    assert_eq!(found.len(), 1, "{found:?}");
    let start = "upstreams.a.unsigned = true: narinfos of http://a are passed on unverified";
    assert!(found[0].starts_with(start), "{found:?}");
    refused(
        &format!("{file}resign = \"only\""),
        "samovar.toml:1: upstreams.a.resign would sign narinfos that are not verified, because \
         upstreams.a.unsigned = true: remove one of them",
    );
}

#[test]
fn an_upstream_is_named_once() {
    refused(
        &format!(
            "{}[upstreams.b]\nurl = \"https://x:y@CACHE.example.org/team/\"\n\
                  unsigned = true",
            team("")
        ),
        "samovar.toml:1: the upstreams b and team have the same URL \
         https://cache.example.org/team: remove one of them",
    );
    refused(
        &format!("upstream = [\"{NIXOS}\", \"{NIXOS}/\"]"),
        "samovar.toml:1: upstream names https://cache.nixos.org twice: remove one of them",
    );
    refused(
        &format!("upstream = \"{NIXOS}\"\n[upstreams.nixos]\nurl = \"{NIXOS}\"\n"),
        "samovar.toml:1: upstream names https://cache.nixos.org, which is the URL of \
         upstreams.nixos, too: remove one of them",
    );
}

#[test]
fn our_signatures_need_a_key() {
    for resign in ["add", "only"] {
        let file = team(&format!("resign = {resign:?}\n"));
        refused(
            &file,
            &format!("upstreams.team.resign = {resign:?} requires secret-key-files"),
        );
        configuration(&format!("secret-key-files = \"/k\"\n{file}")).unwrap();
        let caches = "[caches.a]\nsecret-key-files = \"/k\"\n[caches.b]\n";
        refused(
            &format!("{caches}{file}"),
            &format!(
                "upstreams.team.resign = {resign:?} requires secret-key-files of the cache b, \
                 which passes on what this upstream has"
            ),
        );
        configuration(&format!("{caches}upstreams = []\n{file}")).unwrap();
    }
    configuration(&team("resign = \"no\"\n")).unwrap();
}

#[test]
fn upstreams_of_a_cache_exist() {
    let file = |names: &str| format!("[caches.a]\nupstreams = {names}\n{}", team(""));
    configuration(&file("[\"team\"]")).unwrap();
    configuration(&file("\"team\"")).unwrap();
    refused(
        &file("[\"taem\"]"),
        "samovar.toml:2: caches.a.upstreams must be a list with \"team\" instead of \"taem\", got \
         [\"taem\"]",
    );
    refused(
        &file("[\"team\", \"nixos\"]"),
        "samovar.toml:2: caches.a.upstreams must be a list of names among team, got \
         [\"team\", \"nixos\"]",
    );
    refused(
        "[caches.a]\nupstreams = [\"nixos\"]",
        "samovar.toml:2: caches.a.upstreams must be left out: there is no upstream, got \
         [\"nixos\"]",
    );
    configuration("[caches.a]\nupstreams = []").unwrap();
}

/// Options of upstreams, of caches and of the server are not mixed up.
#[test]
fn options_in_the_wrong_place_are_refused() {
    for (file, line, message) in [
        (
            "upstreams = [\"a\"]",
            1,
            "`upstreams`: it is an option of one cache: set it in [caches.NAME]; or did you mean \
             `upstream`?",
        ),
        (
            "netrc-file = \"/n\"",
            1,
            "`netrc-file`: it is an option of one upstream: set it in [upstreams.NAME]",
        ),
        (
            "[caches.a]\nurl = \"https://a\"",
            2,
            "`caches.a.url`: it is an option of an upstream, not of a cache",
        ),
        (
            "[upstreams.a]\nprefix = \"/\"",
            2,
            "`upstreams.a.prefix`: it is an option of a cache, not of an upstream",
        ),
        (
            "[upstreams.a]\nlisten = \":1\"",
            2,
            "`upstreams.a.listen`: it is an option of the server, not of an upstream",
        ),
        (
            "[upstreams.a]\npublic-key = \"x\"",
            2,
            "`upstreams.a.public-key`; did you mean `public-keys`?",
        ),
        (
            "[upsterams.a]\nurl = \"https://a\"",
            1,
            "`upsterams`; did you mean `upstreams`?",
        ),
        (
            "upstraem = \"https://a\"",
            1,
            "`upstraem`; did you mean `upstream`?",
        ),
    ] {
        refused(
            file,
            &format!("samovar.toml:{line}: unknown option {message}"),
        );
    }
    refused(
        "[upstreams.A]\nurl = \"https://a\"",
        "samovar.toml:1: invalid name of an upstream \"A\": use at most 64 characters: a to \
         z, 0 to 9, dashes",
    );
    let variable = |name: &str, message: &str| {
        let pair = (name.to_owned(), "x".to_owned());
        let error = Settings::default().add_variables([pair], &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("${name}: {message}"));
    };
    variable(
        "SAMOVAR_UPSTREAMS__A__PUBLIC_KEY",
        "unknown option `SAMOVAR_UPSTREAMS__A__PUBLIC_KEY`; did you mean \
         `SAMOVAR_UPSTREAMS__A__PUBLIC_KEYS`?",
    );
    variable(
        "SAMOVAR_UPSTREAMS__A__LISTEN",
        "unknown option `upstreams.a.listen`: it is an option of the server, not of an upstream",
    );
}

#[test]
fn values_of_upstreams_have_bounds() {
    let nixos = format!("[upstreams.a]\nurl = \"{NIXOS}\"\n");
    for (line, name, least, most, past, expected) in [
        (
            3,
            "upstreams.a.timeout",
            "100ms",
            "60s",
            ["99ms", "60001ms"],
            "a time from 100 ms to 60 s",
        ),
        (
            1,
            "upstream-budget",
            "50ms",
            "60s",
            ["49ms", "2 min"],
            "a time from 50 ms to 60 s",
        ),
        (
            1,
            "negative-ttl",
            "off",
            "1h",
            ["3601s", "-1s"],
            "a time from 0 s to 60 min",
        ),
    ] {
        let with = |value: &str| match name.strip_prefix("upstreams.a.") {
            Some(option) => format!("{nixos}{option} = {value:?}"),
            None => format!("{name} = {value:?}\n{nixos}"),
        };
        configuration(&with(least)).unwrap();
        configuration(&with(most)).unwrap();
        for value in past {
            let message = format!("{name} must be {expected}, got {value:?}");
            refused(&with(value), &format!("samovar.toml:{line}: {message}"));
        }
    }
    refused(
        "upstream-memory = \"1023 KiB\"",
        "samovar.toml:1: upstream-memory must be a number of bytes, at least 1048576, such as 4096 \
         or \"64 MiB\", got \"1023 KiB\"",
    );
    refused(
        &format!("{nixos}resign = \"yes\""),
        "samovar.toml:3: upstreams.a.resign must be no or add or only, got \"yes\"",
    );
    refused(
        &format!("{nixos}public-keys = [\"x\"]"),
        "samovar.toml:3: upstreams.a.public-keys must be a list of public keys, NAME:BASE64, whose \
         NAME has no blanks, got something else, which is not shown",
    );
}

#[test]
fn an_upstream_that_no_cache_uses_is_remarked() {
    let file = format!("[caches.a]\nprefix = \"/\"\nupstreams = []\n{}", team(""));
    let expected = "the upstream team is not asked: no cache has it in its list upstreams";
    assert_eq!(remarks(&file), [expected]);
    let file = format!("{file}[caches.b]\n");
    assert_eq!(remarks(&file), [] as [String; 0]);
}
