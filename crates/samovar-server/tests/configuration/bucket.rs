//! A bucket and a database are set together with what they need, and no output shows a password.

use proptest::prelude::*;
use samovar_server::config::{Settings, Value, read, show};

use super::{configuration, refused, settings};

const STORAGE: &str = "storage = \"/srv/samovar\"\nbucket.url = \"s3://bucket/p?region=x\"\n";

#[test]
fn a_bucket_and_a_database_are_read() {
    let config = configuration(&format!(
        "{STORAGE}bucket.credentials-file = \"/k\"\nbucket.ca-file = \"/ca\"\n\
         bucket.cache-size = \"1 GiB\"\nbucket.deliver = \"redirect\"\n\
         bucket.redirect-over = \"64 MiB\"\nbucket.pack = false\n\
         database.url = \"postgresql://u@h/d\"\ndatabase.password-file = \"/pw\"\n\
         node.name = \"n-1\"\n"
    ))
    .unwrap();
    let bucket = config.bucket.as_ref().unwrap();
    assert_eq!(bucket.url, "s3://bucket/p?region=x");
    assert_eq!(bucket.cache_len, 1 << 30);
    assert_eq!(bucket.redirect_over, Some(64 << 20));
    assert!(!bucket.packs);
    let database = config.database.as_ref().unwrap();
    assert_eq!(database.url, "postgresql://u@h/d");
    assert_eq!(config.node_name(), "n-1");
    let bucket = configuration(STORAGE).unwrap().bucket.unwrap();
    assert_eq!((bucket.cache_len, bucket.redirect_over), (10 << 30, None));
    assert!(bucket.packs);
}

#[test]
fn what_is_missing_is_named() {
    let needs_storage = "bucket.url requires storage, the directory for temporary files and the \
                         disk cache";
    refused("bucket.url = \"s3://bucket\"", needs_storage);
    refused(
        "storage = \"/s\"\ndatabase.url = \"postgresql://h/d\"",
        "database.url requires bucket.url, since several servers cannot share a directory",
    );
    refused("bucket.pack = false", "bucket.pack requires bucket.url");
    refused(
        "bucket.deliver = \"redirect\"",
        "bucket.deliver = \"redirect\" requires bucket.url",
    );
    refused(
        &format!("{STORAGE}bucket.redirect-over = 1"),
        "bucket.redirect-over requires bucket.deliver = \"redirect\"",
    );
    refused(
        "database.password-file = \"/p\"",
        "database.password-file requires database.url",
    );
    refused("node.name = \"a\"", "node.name requires database.url");
}

#[test]
fn invalid_values_are_described() {
    refused(
        "bucket.url = \"https://bucket\"",
        "samovar.toml:1: bucket.url must be a URL such as \
         s3://BUCKET/PREFIX?region=REGION&endpoint=https://HOST, got \"https://bucket\"",
    );
    refused(
        "bucket.url = \"s3://key:hunter2@bucket\"",
        "samovar.toml:1: bucket.url must be a URL such as \
         s3://BUCKET/PREFIX?region=REGION&endpoint=https://HOST, without an access key: set \
         bucket.credentials-file, got a value that is not shown, because it may contain a login",
    );
    refused(
        "database.url = 1",
        "samovar.toml:1: database.url must be a URL that begins with postgresql://, got 1",
    );
    refused(
        "node.name = \"a b\"",
        "samovar.toml:1: node.name must be a name of at most 64 letters, digits, dots, dashes and \
         underscores, got \"a b\"",
    );
    refused(
        &format!("{STORAGE}bucket.cache-size = 1"),
        "samovar.toml:3: bucket.cache-size must be a number of bytes, at least 67108864, such as \
         4096 or \"64 MiB\", got 1",
    );
}

/// A part of each password.
const SECRET: &str = "hunter2";

/// Returns everything that is printed for a URL of the database.
fn printed(url: &str) -> String {
    let file = format!("{STORAGE}database.url = {}\n", Value::Text(url.to_owned()));
    let settings: Settings = match settings(&file) {
        Ok(settings) => settings,
        Err(error) => return error.to_string(),
    };
    match read(&settings, |_| None) {
        Ok(config) => format!("{}{config:?}", show(&settings, &config)),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_password_is_accepted_but_not_shown() {
    let text = printed("postgresql://ada:hunter2@h1,h2:5433/d?sslmode=require");
    assert!(
        text.contains("database.url = \"postgresql://***@h1,h2:5433/d?sslmode=require\""),
        "{text}"
    );
    let text = printed("postgresql://h/d?user=u&password=hunter2");
    assert!(text.contains("set database.password-file"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

fn url() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        4 => Just("postgresql://"),
        1 => Just("postgres://"),
        1 => Just("POSTGRES://"),
        1 => Just("mysql://"),
        1 => Just("postgresql:/"),
        1 => Just("//"),
        1 => Just(""),
    ];
    let any = || prop_oneof![3 => "[a-z:%.]{0,4}", 1 => "[ -~\\n\\t\u{e9}]{0,4}"];
    let rest = prop_oneof![
        4 => Just("h1:5432,h2/samovar?sslmode=require".to_owned()),
        1 => Just("%2Frun%2Fpostgresql/d".to_owned()),
        2 => "[ -~\\n\u{e9}]{0,12}",
    ];
    (scheme, any(), any(), any(), rest).prop_map(|(scheme, user, before, after, rest)| {
        format!("{scheme}{user}:{before}{SECRET}{after}@{rest}")
    })
}

proptest! {
    #[test]
    fn no_output_contains_the_password_of_the_database(url in url()) {
        let text = printed(&url);
        prop_assert!(!text.contains(SECRET), "{url:?}: {text}");
    }
}
