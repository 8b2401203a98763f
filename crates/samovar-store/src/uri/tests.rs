use super::*;

fn parse(text: &str) -> StoreUri {
    StoreUri::parse(text).unwrap()
}

#[track_caller]
fn check_kind(text: &str, expected: StoreKind) {
    assert_eq!(parse(text).kind, expected);
}

#[track_caller]
fn check_root(text: &str, expected: &str) {
    let uri = parse(text);
    assert_eq!(uri.kind, StoreKind::Local);
    assert_eq!(uri.parameters.root.as_deref(), Some(Path::new(expected)));
}

#[track_caller]
fn check_unsupported(text: &str, expected: &str) {
    let error = StoreUri::parse(text).unwrap_err();
    assert_eq!(error, UriError::Unsupported(expected.to_owned()));
    assert!(error.to_string().contains("unix://"));
}

#[test]
fn kinds() {
    check_kind("", StoreKind::Auto);
    check_kind("auto", StoreKind::Auto);
    check_kind("auto?path-info-cache-size=0", StoreKind::Auto);
    check_kind("local", StoreKind::Local);
    check_kind("local://", StoreKind::Local);
    check_kind("daemon", StoreKind::Daemon(None));
    check_kind("unix://", StoreKind::Daemon(None));
    check_kind("unix:///run/s", StoreKind::Daemon(Some("/run/s".into())));
    check_kind(
        "unix:///run/s?root=/mnt",
        StoreKind::Daemon(Some("/run/s".into())),
    );
}

#[test]
fn paths() {
    check_root("/mnt", "/mnt");
    check_root("/mnt/", "/mnt");
    check_root("/", "/");
    check_root("local?root=/mnt", "/mnt");
    check_root("local:///mnt", "/mnt");
    let here = std::env::current_dir().unwrap();
    check_root("./x", here.join("x").to_str().unwrap());
    check_root("x/y?store=/s", here.join("x/y").to_str().unwrap());
}

#[test]
fn parameters() {
    let uri = parse(
        "local?root=/r&real=/re%26al&state=/st&log=/l&store=/sto&read-only=true&what=1&trusted=1",
    );
    let parameters = &uri.parameters;
    assert_eq!(parameters.root.as_deref(), Some(Path::new("/r")));
    assert_eq!(parameters.real.as_deref(), Some(Path::new("/re&al")));
    assert_eq!(parameters.state.as_deref(), Some(Path::new("/st")));
    assert_eq!(parameters.log.as_deref(), Some(Path::new("/l")));
    assert_eq!(parameters.store.as_ref().unwrap().to_string(), "/sto");
    assert!(parameters.read_only);
    assert_eq!(uri.unknown_parameters(), ["what"]);
}

#[test]
fn an_empty_directory_is_absent() {
    assert_eq!(parse("local?root=").parameters.root, None);
}

#[test]
fn unsupported_kinds_name_the_supported_ones() {
    check_unsupported("ssh://host", "ssh");
    check_unsupported("ssh-ng://host", "ssh-ng");
    check_unsupported("http://host/x", "http");
    check_unsupported("https://cache.nixos.org", "https");
    check_unsupported("s3://bucket", "s3");
    check_unsupported("file:///dir", "file");
    check_unsupported("dummy://", "dummy");
    check_unsupported("local-overlay://?root=/x", "local-overlay");
    check_unsupported("nonsense", "nonsense");
}

#[test]
fn broken_values() {
    let fails = |text: &str| StoreUri::parse(text).unwrap_err();
    assert_eq!(fails("local?root=%zz"), UriError::Percent("root".into()));
    assert_eq!(
        fails("local?root=mnt"),
        UriError::NotAbsolute("root".into())
    );
    assert_eq!(fails("unix://socket"), UriError::NotAbsolute("unix".into()));
    assert_eq!(
        fails("local?read-only=perhaps"),
        UriError::NotBoolean("read-only".into())
    );
    assert_eq!(
        fails("local?store=store"),
        UriError::NotAbsolute("store".into())
    );
}

#[test]
fn length_at_the_limit_and_past_it() {
    let long = |len: usize| format!("/{}", "x".repeat(len - 1));
    assert!(StoreUri::parse(&long(URI_LEN_MAX)).is_ok());
    assert_eq!(
        StoreUri::parse(&long(URI_LEN_MAX + 1)),
        Err(UriError::TooLong)
    );
}

#[test]
fn percent_encoded_values() {
    let check = |input: &str, expected: Option<&str>| {
        assert_eq!(decode(input).as_deref(), expected, "{input}");
    };
    check("", Some(""));
    check("/a%20b", Some("/a b"));
    check("%2Fx%2fy", Some("/x/y"));
    check("a+b", Some("a+b"));
    check("%", None);
    check("%2", None);
    check("%2g", None);
    check("%+1", None);
    check("%ff", None);
    check("%c3%a9", Some("é"));
}
