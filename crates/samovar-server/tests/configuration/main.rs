//! Options from file, environment and command line form one configuration. An invalid value is
//! refused with its origin and a fix.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use samovar_cache::access::AccessConfig;
use samovar_server::config::{
    AdminSettings, CacheSettings, CertificateFiles, ClientAddress, ConfigError, Configuration,
    Kind, LogTarget, OptionSpec, Origin, Settings, read, show,
};
use samovar_server::listener::ListenSpec;

mod bucket;
mod changed;
mod credentials;
mod relative;
mod remarks;
mod uploads;
mod upstream_logins;
mod upstreams;
mod variables;

fn settings(file: &str) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    settings.add_text(Path::new("samovar.toml"), file)?;
    Ok(settings)
}

fn configuration(file: &str) -> Result<Configuration, ConfigError> {
    read(&settings(file)?, |_| None)
}

#[track_caller]
fn refused(file: &str, message: &str) {
    let error = configuration(file).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn an_empty_file_gives_the_defaults() {
    assert_eq!(configuration("").unwrap(), Configuration::default());
}

#[test]
fn all_settings_of_a_file_are_read() {
    let config = configuration(
        r#"
        listen = [":5001", "/run/samovar/socket"]
        backlog = 7
        workers = 4
        queue = 5
        user = "nobody"
        group = "nogroup"
        pid-file = "/run/pid"
        store = "/srv/store"
        gc-lease = "2 min"
        verify = "never"
        scrub = "8 MiB"
        state-directory = "/var/lib/samovar"
        prefix = "/cache"
        priority = 0
        secret-key-files = ["/a", "/b"]

        [tls]
        certificate = "/tls/cert.pem"
        key = "/tls/key.pem"

        [[tls.certificates]]
        certificate = "/tls/other.pem"
        key = "/tls/other.key"

        [connections]
        requests = 100
        idle-time = 0
        head-time = "5 s"
        max = 3
        head-size = "1 KiB"
        streams = 4
        stall-time = 0

        [nar-cache]
        directory = "/var/cache/samovar"
        size = 0

        [log]
        errors = "/var/log/errors"
        verbose = true
        access = "-"
        client-address = "forwarded"

        [access]
        trusted-proxies = ["unix"]
        "#,
    )
    .unwrap();
    let spec = |text: &str| ListenSpec::parse(text.as_ref()).unwrap().spec;
    assert_eq!(
        config.listeners,
        [spec(":5001"), spec("/run/samovar/socket")]
    );
    assert_eq!(config.backlog, 7);
    assert_eq!(config.workers.unwrap().get(), 4);
    assert_eq!(config.user.as_deref(), Some("nobody"));
    assert_eq!(config.group.as_deref(), Some("nogroup"));
    assert_eq!(config.pid_file, Some("/run/pid".into()));
    assert_eq!(config.store.as_deref(), Some("/srv/store"));
    assert_eq!(config.gc_lease, Some(Duration::from_secs(120)));
    assert!(!config.verifies_first);
    assert_eq!(config.scrub_rate.unwrap().get(), 8 << 20);
    assert_eq!(config.state_directory, Some("/var/lib/samovar".into()));
    let tls = config.tls.unwrap();
    let files = |certificate: &str, key: &str, entry| CertificateFiles {
        certificate: certificate.into(),
        key: key.into(),
        entry,
    };
    let expected = [
        files("/tls/cert.pem", "/tls/key.pem", None),
        files("/tls/other.pem", "/tls/other.key", Some(1)),
    ];
    assert_eq!(tls.certificates, expected);
    let limits = &config.limits;
    assert_eq!(limits.requests_per_connection_max, 100);
    assert_eq!(limits.idle_time, Duration::ZERO);
    assert_eq!(limits.head_time, Duration::from_secs(5));
    assert_eq!(limits.stall_time, Duration::MAX);
    assert_eq!(limits.connections_max, 3);
    assert_eq!(limits.head.head_len_max, 1024);
    assert_eq!(limits.streams_max, 4);
    assert_eq!(limits.queue_len_max, 5);
    assert_eq!(config.nar_cache, Some("/var/cache/samovar".into()));
    assert_eq!(config.nar_cache_size, Some(0));
    assert_eq!(config.error_log, Some("/var/log/errors".into()));
    assert!(config.is_verbose);
    assert_eq!(config.access_log, Some(LogTarget::StandardOutput));
    assert_eq!(config.client_address, ClientAddress::Forwarded);
    let only = CacheSettings {
        name: String::new(),
        prefix: "/cache".to_owned(),
        priority: 0,
        secret_key_files: vec!["/a".into(), "/b".into()],
        access: AccessConfig {
            trusted_proxies: vec!["unix".to_owned()],
            ..AccessConfig::default()
        },
        ..CacheSettings::default()
    };
    assert_eq!(config.caches, [only]);
}

#[test]
fn limits_have_bounds() {
    for (key, least, most) in [
        ("connections.max", 1, 1_000_000),
        ("connections.head-size", 1024, 65_536),
        ("connections.streams", 1, 10_000),
        ("queue", 1, 1_000_000),
    ] {
        let with = |value: u32| configuration(&format!("{key} = {value}"));
        with(least).unwrap();
        with(most).unwrap();
        for past in [least - 1, most + 1] {
            let error = with(past).map(|_| ()).unwrap_err().to_string();
            let expected = format!("samovar.toml:1: {key} must be ");
            assert!(error.starts_with(&expected), "{error}");
            assert!(
                error.contains(&format!("from {least} to {most}")),
                "{error}"
            );
        }
    }
    refused(
        "log.client-address = \"forwarded\"",
        "log.client-address = \"forwarded\" requires access.trusted-proxies",
    );
}

/// Options at the top level apply to every named cache.
#[test]
fn named_caches() {
    let config = configuration(
        r#"
        priority = 20
        secret-key-files = "/k"
        [caches.team-a]
        [caches.b]
        prefix = "/"
        priority = 50
        "#,
    );
    let caches = config.unwrap().caches;
    assert_eq!(caches.len(), 2);
    let (b, team_a) = (&caches[0], &caches[1]);
    assert_eq!(
        (b.name.as_str(), b.prefix.as_str(), b.priority),
        ("b", "", 50)
    );
    assert_eq!(team_a.prefix, "/team-a");
    assert_eq!(team_a.priority, 20);
    assert_eq!(team_a.secret_key_files, [PathBuf::from("/k")]);
}

#[test]
fn invalid_settings_are_refused() {
    // A misspelled table.
    for (table, meant) in [
        ("tsl", "tls"),
        ("acces", "access"),
        ("cahces.a", "caches"),
        ("polciy", "policy"),
        ("caches.a.acess", "access"),
        ("access.certifcates", "access.certificates"),
    ] {
        let name = table.strip_suffix("s.a").map_or(table, |_| "cahces");
        refused(
            &format!("[{table}]\nrate = 4\n"),
            &format!("samovar.toml:1: unknown option `{name}`; did you mean `{meant}`?"),
        );
    }
    refused(
        "\nprioritty = 1",
        "samovar.toml:2: unknown option `prioritty`; did you mean `priority`?",
    );
    refused(
        "[nonsense]\na = 1",
        "samovar.toml:1: unknown option `nonsense`",
    );
    refused(
        "[log]\nerorrs = 1",
        "samovar.toml:2: unknown option `log.erorrs`; did you mean `log.errors`?",
    );
    refused(
        "[caches.a]\nlisten = []",
        "samovar.toml:2: unknown option `caches.a.listen`: it is an option of the server, not of \
         a cache",
    );
    refused(
        "[caches.A]\npriority = 1",
        "samovar.toml:1: invalid name of a cache \"A\": use at most 64 characters: a to z, \
         0 to 9, dashes",
    );
    refused(
        "priority = 2147483648",
        "samovar.toml:1: priority must be a whole number from 0 to 2147483647, got 2147483648",
    );
    refused(
        "priority = \"1\"",
        "samovar.toml:1: priority must be a whole number from 0 to 2147483647, got \"1\"",
    );
    refused(
        "verify = \"always\"",
        "samovar.toml:1: verify must be first or never, got \"always\"",
    );
    refused(
        "listen = [\"5000\"]",
        "samovar.toml:1: listen must be a list of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of \
         unix sockets, got [\"5000\"]",
    );
    refused(
        "gc-lease = \"soon\"",
        "samovar.toml:1: gc-lease must be a number of seconds, or a time such as \"10 min\", got \
         \"soon\"",
    );
    refused("tls.key = \"/k\"", "tls.key requires tls.certificate");
    refused(
        "tls = { certificate = \"/c\", key = \"/k\", client-certificates = \"required\" }",
        "tls.client-certificates = \"required\" requires tls.client-authorities",
    );
    refused(
        "prefix = \"/x\"\n[caches.a]\npriority = 1",
        "samovar.toml:1: prefix must be set for each cache in [caches.NAME], since some are named, \
         got \"/x\"",
    );
    refused(
        "[caches.a]\nprefix = \"/x\"\n[caches.b]\nprefix = \"/x/\"",
        "the caches a and b have the same prefix /x/: change one of them",
    );
    refused(
        "secret-key-files = [\"credential:key\"]",
        "samovar.toml:1: secret-key-files must be the path of a file: the service manager has \
         passed no credentials (LoadCredential=), got [\"credential:key\"]",
    );
    let error = configuration("listen = [").map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("samovar.toml:1: "), "{error}");
}

/// The prefix of each cache is appended to a `public-url` that is set for all caches.
#[test]
fn a_common_public_url_is_extended_by_the_prefix_of_each_cache() {
    let config = configuration(
        r#"
        public-url = "https://cache.example.org/"
        [caches.main]
        prefix = "/"
        [caches.team-a]
        [caches.team-b]
        public-url = "https://b.example.org"
        "#,
    );
    let url = |cache: &CacheSettings| cache.pages.clone().unwrap().public_url.unwrap();
    let urls: Vec<String> = config.unwrap().caches.iter().map(url).collect();
    let expected = [
        "https://cache.example.org",
        "https://cache.example.org/team-a",
    ];
    assert_eq!(urls[..2], expected);
    assert_eq!(urls[2], "https://b.example.org");
    let one = configuration("public-url = \"https://c\"\nprefix = \"/x\"").unwrap();
    assert_eq!(url(&one.caches[0]), "https://c");
}

/// The defaults in the reference are the limits of the engine and the default configuration.
#[test]
fn shown_defaults_are_those_in_effect() {
    let default = |name: &str| OptionSpec::find(name).unwrap().default();
    let limits = samovar_http::Limits::default();
    assert_eq!(default("queue"), limits.queue_len_max.to_string());
    let idle = format!("{} s", limits.idle_time.as_secs());
    assert_eq!(default("connections.idle-time"), idle);
    assert_eq!(
        default("backlog"),
        Configuration::default().backlog.to_string()
    );
    assert_eq!(default("verify"), "first");
    for name in [
        "queue",
        "connections.idle-time",
        "connections.head-time",
        "backlog",
    ] {
        let text = format!("{name} = \"{}\"", default(name)).replace("\"4096\"", "4096");
        let text = text.replace("\"1024\"", "1024");
        assert_eq!(
            configuration(&text).unwrap(),
            Configuration::default(),
            "{text}"
        );
    }
}

#[test]
fn an_empty_list_of_clients_does_not_admit_everybody() {
    let refused_as = |name: &str, file: &str| {
        let rest = "must be left out, or name a client: without one, everybody may read, got []";
        refused(file, &format!("samovar.toml:1: {name} {rest}"));
    };
    refused_as("access.networks", "access.networks = []");
    refused_as("access.gids", "access.gids = []");
    refused_as("caches.a.access.uids", "caches.a.access.uids = []");
    let mut by_variable = settings("access.networks = \"192.0.2.0/24\"").unwrap();
    let variable = ("SAMOVAR_ACCESS_NETWORKS".to_owned(), String::new());
    by_variable.add_variables([variable], &[]).unwrap();
    assert!(read(&by_variable, |_| None).is_err());
    // Valid, because other access rules remain, or because a cache overrides a rule at the top
    // level.
    let networks = "access.networks = \"192.0.2.0/24\"\n";
    assert!(configuration(&format!("{networks}access.uids = []")).is_ok());
    let public = configuration(&format!("{networks}[caches.a]\naccess.networks = []")).unwrap();
    assert!(public.caches[0].access.lets_everybody_in());
    for file in ["[]", "[\"/a\", \"/b\"]"] {
        let message = format!("samovar.toml:1: access.users-file must be a path, got {file}");
        refused(&format!("access.users-file = {file}"), &message);
    }
}

/// The command line overrides the environment, which overrides the file.
#[test]
fn the_command_line_overrides_variables_and_these_the_file() {
    let mut settings = settings("priority = 1\nbacklog = 1\nworkers = 1").unwrap();
    let variables = [
        ("SAMOVAR_PRIORITY", "2"),
        ("SAMOVAR_BACKLOG", "2"),
        ("SAMOVAR_CONFIG", "samovar.toml"),
        ("SAMOVAR_CACHES__TEAM_A__PRIORITY", "3"),
        ("OTHER", "x"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    settings
        .add_variables(variables, &["SAMOVAR_CONFIG"])
        .unwrap();
    let option = Origin::Option("priority".to_owned());
    settings.set("priority", "9", option).unwrap();
    let config = read(&settings, |_| None).unwrap();
    assert_eq!(config.workers.unwrap().get(), 1);
    assert_eq!(config.backlog, 2);
    assert_eq!(config.caches[0].name, "team-a");
    assert_eq!(config.caches[0].priority, 3);

    let text = show(&settings, &config);
    assert!(text.contains("priority = 9  # --priority\n"), "{text}");
    assert!(text.contains("backlog = 2  # $SAMOVAR_BACKLOG\n"), "{text}");
    assert!(text.contains("workers = 1  # samovar.toml:3\n"), "{text}");
    assert!(
        text.contains("\n#listen = [\"*:5000\"]\n") || text.starts_with("#listen"),
        "{text}"
    );
    let named = "caches.team-a.priority = 3  # $SAMOVAR_CACHES__TEAM_A__PRIORITY\n";
    assert!(text.contains(named), "{text}");
    // The printed configuration can be parsed, and gives the same configuration.
    let mut again = Settings::default();
    again.add_text(Path::new("shown"), &text).unwrap();
    assert_eq!(read(&again, |_| None).unwrap(), config);
}

/// The defaults in the output of `--check-config` can be uncommented, and are those in effect.
#[test]
fn shown_defaults_can_be_uncommented() {
    let directories = |name: &str| match name {
        "STATE_DIRECTORY" => Some("/var/lib/samovar".to_owned()),
        "NIX_SECRET_KEY_FILE" => Some("/key".to_owned()),
        _ => None,
    };
    let before = read(&Settings::default(), directories).unwrap();
    let text = show(&Settings::default(), &before);
    for line in [
        "#backlog = 1024",
        "#pages = true",
        "#connections.idle-time = \"60 s\"",
        "#connections.head-size = \"16 KiB\"",
        "#state-directory = \"/var/lib/samovar\"",
        "#secret-key-files = [\"/key\"]",
        "#verify = \"first\"",
        "#scrub = 0",
        "# user: the user who starts the server",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
    let lines = text.lines().filter(|line| !line.starts_with("# "));
    let lines: Vec<&str> = lines.map(|line| line.trim_start_matches('#')).collect();
    assert!(lines.len() > 30, "{text}");
    let after = configuration(&lines.join("\n")).unwrap();
    // These are `None` for a default that depends on the machine, or state whether they are given.
    let expected = Configuration {
        listen_given: true,
        workers: after.workers,
        gc_lease: Some(Duration::from_secs(600)),
        nar_cache: Some("/var/tmp".into()),
        admin: AdminSettings {
            is_default: false,
            ..before.admin.clone()
        },
        ..before
    };
    assert!(after.workers.is_some());
    assert_eq!(after, expected);
}

/// A valid value for options that take public keys.
const PUBLIC_KEY: &str = "test-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

#[test]
fn every_option_can_be_set_everywhere() {
    for spec in OptionSpec::all() {
        let text = match spec.kind {
            Kind::Size(..) if spec.name == "connections.head-size" => "2 KiB",
            Kind::Size(..) if spec.name == "upstream-memory" => "2 MiB",
            Kind::Size(..) if spec.name == "bucket.cache-size" => "64 MiB",
            Kind::Count(..) | Kind::Size(..) | Kind::Time | Kind::TimeWithin(..) => "1",
            Kind::UrlOf(_) if spec.name == "bucket.url" => "s3://bucket",
            Kind::UrlOf(_) => "postgresql://host/samovar",
            Kind::Url | Kind::Urls => "https://cache.nixos.org",
            Kind::Switch if spec.name == "pages" => "false",
            Kind::Switch => "true",
            // The first word is the default, so use another one.
            Kind::Word(words) => words[1],
            Kind::Tables if spec.name == "tls.certificates" => {
                "[{ certificate = \"/x\", key = \"/x\" }]"
            }
            Kind::Tables => "[{ names = \"x\" }]",
            Kind::List if spec.name == "signing.trusted-keys" => PUBLIC_KEY,
            Kind::List if spec.name.ends_with("listen") => ":0",
            Kind::List if spec.name.ends_with("ids") => "1",
            Kind::List if ["access.networks", "access.trusted-proxies"].contains(&spec.name) => {
                "192.0.2.0/24"
            }
            Kind::Text | Kind::List if ["prefix", "secret-key-files"].contains(&spec.name) => "/x",
            Kind::Text if spec.name == "uploads.retention" => "1d",
            Kind::List if spec.name == "uploads.retention-rules" => "*-debug=1d",
            Kind::List if spec.name == "sources" => "nix-store",
            Kind::Text if spec.name == "public-url" => "https://x",
            // A relative path depends on where it was set.
            Kind::Path => "/x",
            Kind::Text | Kind::List => "x",
        };
        let mut by_variable = Settings::default();
        let variables = [(spec.variable(), text.to_owned())];
        by_variable.add_variables(variables, &[]).unwrap();
        let mut by_option = Settings::default();
        let origin = Origin::Option(spec.option());
        by_option.set(spec.name, text, origin).unwrap();
        let value = |settings: &Settings| settings.exactly(spec.name).unwrap().value.clone();
        assert_eq!(value(&by_variable), value(&by_option), "{}", spec.name);
        let file = format!("{} = {}", spec.name, value(&by_option));
        let by_file = settings(&file).unwrap();
        assert_eq!(value(&by_file), value(&by_option), "{file}");
        // Skip options that are refused without others.
        let parts = [
            "tls.",
            "access.certificates.",
            "access.burst",
            "signing.trusted-keys",
            "log.client-address",
            "bucket.",
            "database.",
            "node.",
        ];
        if !parts.iter().any(|part| spec.name.starts_with(part)) {
            let read_by = |settings: &Settings| read(settings, |_| None).unwrap();
            assert_eq!(read_by(&by_file), read_by(&by_option), "{file}");
            assert_ne!(
                read_by(&by_file),
                Configuration::default(),
                "{file} has an effect"
            );
        }
    }
}

#[test]
fn files_that_cannot_be_read() {
    let mut settings = Settings::default();
    let error = settings.add_file(Path::new("/")).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let error = settings.add_file(Path::new("/nowhere")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot read the configuration file \"/nowhere\""),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long");
    for (len, is_read) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        std::fs::write(&long, vec![b'\n'; len]).unwrap();
        assert_eq!(
            Settings::default().add_file(&long).is_ok(),
            is_read,
            "{len}"
        );
    }
}

#[test]
fn policy_rules_and_signing() {
    let key = PUBLIC_KEY;
    let config = configuration(&format!(
        "signing.stored = \"keep\"\n\
         [caches.a]\n\
         policy.deny = [{{ names = \"*.drv\" }}]\n\
         signing = {{ sign = \"trusted\", trusted-keys = {key:?}, realisations = true }}\n\
         [caches.b]\n\
         signing.sign = \"ultimate\"\n"
    ));
    let config = config.unwrap();
    let [a, b] = &*config.caches else {
        panic!("two caches")
    };
    let key = samovar_cache::PublicKey::parse(key).unwrap();
    assert_eq!(a.sign, samovar_cache::Sign::TrustedBy(vec![key]));
    assert!(a.signs_realisations && !b.signs_realisations);
    assert_eq!(a.stored, samovar_cache::Stored::Keep);
    assert_eq!(b.stored, samovar_cache::Stored::Keep);
    assert_eq!(b.sign, samovar_cache::Sign::Ultimate);
    assert_eq!((a.policy.deny.len(), b.policy.deny.len()), (1, 0));
    refused(
        "signing.sign = \"trusted\"",
        "signing.sign = \"trusted\" requires signing.trusted-keys",
    );
    refused(
        "policy.allow = []",
        "samovar.toml:1: policy.allow must be a list of at least one table, such as \
         [{ names = [\"hello-*\"] }], got []",
    );
    refused(
        "policy.deny = [{ name = \"x\" }]",
        "samovar.toml:1: policy.deny must be made with names instead of \"name\", got \
         [{ name = \"x\" }]",
    );
}
