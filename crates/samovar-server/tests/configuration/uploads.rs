//! Options of uploads: retention, options without a storage, and caches that hide upload URLs.

use super::{configuration, refused};

#[test]
fn a_retention_of_less_than_30_days_is_remarked() {
    let remarks = |days: u32| {
        let file = format!("storage = \"/s\"\nuploads.retention = \"{days}d\"\n");
        configuration(&file).unwrap().remarks
    };
    let short = remarks(29);
    assert_eq!(short.len(), 1, "{short:?}");
    assert!(
        short[0].starts_with("uploads.retention is 29 days: "),
        "{short:?}"
    );
    assert!(remarks(1)[0].starts_with("uploads.retention is 1 day: "));
    let hours = configuration("storage = \"/s\"\nuploads.retention = \"36h\"\n").unwrap();
    assert!(hours.remarks[0].starts_with("uploads.retention is 36 hours: "));
    assert_eq!(remarks(30), [] as [String; 0]);
    let file = "storage = \"/s\"\n[caches.a.uploads]\nretention = \"1d\"\n\
                [caches.b]\nprefix = \"/\"\n";
    let of_cache = configuration(file).unwrap().remarks;
    assert_eq!(of_cache.len(), 1, "{of_cache:?}");
    assert!(
        of_cache[0].starts_with("uploads.retention of the cache a is 1 day: "),
        "{of_cache:?}"
    );
}

#[test]
fn a_retention_is_an_hour_at_least() {
    let seconds = |time: &str| {
        let file = format!("storage = \"/s\"\nuploads.retention = \"{time}\"\n");
        let config = configuration(&file).map_err(|error| error.to_string())?;
        Ok::<_, String>(config.caches[0].retention.time)
    };
    assert_eq!(seconds("1h"), Ok(Some(3600)));
    assert_eq!(seconds("90min"), Ok(Some(5400)));
    assert_eq!(seconds("2d"), Ok(Some(172_800)));
    for refused in ["59min", "3599", "0d", "-1h"] {
        let error = seconds(refused).unwrap_err();
        assert!(
            error.contains("a time of at least 1h, such as 90d"),
            "{error}"
        );
    }
}

#[test]
fn a_retention_size_that_the_quota_hides_is_remarked() {
    let remarks = |size: &str| {
        let file = format!(
            "storage = \"/s\"\n[uploads]\nretention-size = \"{size}\"\nquota = \"1 GiB\"\n"
        );
        configuration(&file).unwrap().remarks
    };
    assert_eq!(remarks("1023 MiB"), [] as [String; 0]);
    let found = remarks("1 GiB");
    assert!(
        found[0].starts_with("uploads.retention-size has no effect"),
        "{found:?}"
    );
}

#[test]
fn options_of_uploads_without_a_storage_are_remarked() {
    let remarks = |file: &str| configuration(file).unwrap().remarks;
    let found = remarks("[caches.a]\nprefix = \"/\"\nuploads.quota = \"1 GiB\"\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("caches.a.uploads.quota has no effect without storage"),
        "{found:?}"
    );
    let found = remarks("uploads.retention = \"30d\"\n");
    assert!(
        found[0].starts_with("uploads.retention has no effect"),
        "{found:?}"
    );
    let file = "storage = \"/s\"\nuploads.retention = \"30d\"\n";
    assert_eq!(remarks(file), [] as [String; 0]);
}

#[test]
fn retention_rules_are_a_pattern_and_a_time() {
    let rules = |list: &str| {
        let file = format!("storage = \"/s\"\nuploads.retention-rules = {list}\n");
        let config = configuration(&file).map_err(|error| error.to_string())?;
        let rules = config.caches[0].retention.rules.iter();
        Ok::<_, String>(
            rules
                .map(|rule| (rule.names.to_string(), rule.time))
                .collect::<Vec<_>>(),
        )
    };
    let found = rules("[\"*-debug=30d\", \"a=b-*= 1 d\", \"keep-*=forever\"]").unwrap();
    let expected = [
        ("*-debug", Some(30 * 86_400)),
        ("a=b-*", Some(86_400)),
        ("keep-*", None),
    ];
    assert_eq!(
        found,
        expected.map(|(names, time)| (names.to_owned(), time))
    );
    for wrong in [
        "*-debug",
        "=30d",
        "*-debug=",
        "*-debug=59min",
        "*-debug=0d",
        "*-debug=never",
    ] {
        let error = rules(&format!("[{wrong:?}]")).unwrap_err();
        assert!(
            error.contains("uploads.retention-rules must be a list of rules"),
            "{error}"
        );
    }
}

/// Uploads to a cache must not go to another one.
#[test]
fn a_cache_that_hides_urls_of_another_one_is_refused() {
    for (name, prefix) in [("upload", "/upload"), ("a", "/nar"), ("a", "/x/log/y")] {
        let text = format!("[caches.main]\nprefix = \"/\"\n[caches.x]\n[caches.{name}]\n");
        let error = format!("the prefix {prefix}/ of the cache {name} hides URLs of the cache ");
        let above = if prefix.starts_with("/x") {
            "x"
        } else {
            "main"
        };
        refused(
            &format!("{text}prefix = \"{prefix}\""),
            &format!("{error}{above}: set another prefix"),
        );
    }
    configuration("[caches.upload]\n[caches.nar]").unwrap();
}
