//! Protection that is asked for is given or refused.

use super::*;

#[test]
fn tls_without_a_certificate_is_refused() {
    check_refused(&["--enable-ssl"], "--enable-ssl asks for TLS");
    check_refused(&["--ssl=1"], "--ssl asks for TLS");
    check_refused(&["--listen", ":443:ssl"], "--listen :443:ssl asks for TLS");
    check_refused(
        &["--net_server-proto", "SSLEAY"],
        "--net_server-proto asks for TLS",
    );
    check_refused(&["--enable-ssl", "--ssl-cert", "c"], "--enable-ssl asks");
    check_refused(&["-l", ":443:ssl", "--ssl-key", "k"], "--listen :443:ssl");
    check_refused(&["--ssl-cert", "c"], "--ssl-cert asks for TLS");
    check_refused(&["--ssl-key", "k"], "--ssl-key asks for TLS");
}

#[test]
fn tls_is_on_where_starman_or_ng_turn_it_on() {
    let pair = ["--ssl-cert", "c", "--ssl-key=k"];
    let tls = |arguments: &[&str]| {
        let (options, warnings) = serve(&[&pair[..], arguments].concat());
        (options.tls, warnings.len())
    };
    let everywhere = Tls {
        clients: None,
        certificates: vec![CertificateFiles {
            certificate: "c".into(),
            key: "k".into(),
            entry: None,
        }],
        only: None,
    };
    for arguments in [
        &[][..],
        &["--enable-ssl"],
        &["--disable-ssl", "--enable-ssl"],
        &["--net_server-proto", "SSLEAY"],
        &["--enable-ssl", "--listen", ":443:ssl"],
    ] {
        assert_eq!(
            tls(arguments),
            (Some(everywhere.clone()), 0),
            "{arguments:?}"
        );
    }
    assert_eq!(tls(&["--disable-ssl"]), (None, 2));

    let (one, _) = tls(&["--listen", ":443:ssl", "--listen", ":80", "--disable-ssl"]);
    let one = one.expect("TLS");
    let listener = |port| ListenSpec::Tcp {
        host: Host::Any,
        port,
    };
    assert!(one.covers(&listener(443)));
    assert!(!one.covers(&listener(80)));
    assert!(everywhere.covers(&listener(80)));
    assert!(!everywhere.covers(&ListenSpec::Unix("s".into())));
}

#[test]
fn protection_that_would_be_missing_is_refused() {
    check_refused(&["-e", r#"enable "Auth::Basic""#], "-e runs Perl code");
    check_refused(&["-eenable"], "-e runs Perl code");
    check_refused(&["--app", "private.psgi"], "--app runs Perl code");
    check_refused(
        &["--net_server-cidr_allow=10.0.0.0/8"],
        "--net_server-cidr_allow restricts",
    );
    check_refused(
        &["--net-server-allow", "10.0.0.1"],
        "--net-server-allow restricts",
    );
    check_refused(&["--net_server_deny=x"], "--net_server_deny restricts");
    check_refused(&["--SSL_verify_mode=3"], "--SSL_verify_mode restricts");
    for option in [
        "--ssl-cert",
        "--tls-certificate",
        "--ssl-key",
        "--user",
        "--group",
        "--secret-key-files",
    ] {
        check_refused(&[option, ""], &format!("{option} is empty"));
    }
}

#[test]
fn protection_that_only_samovar_serve_has_is_refused() {
    for spec in OptionSpec::all() {
        let is_protection = ["access", "policy", "secret-key-files", "signing", "tls"]
            .iter()
            .any(|group| spec.name.split('.').next() == Some(group));
        if is_protection && !spec.in_nix_serve {
            let option = format!("--{}", spec.option());
            let expected = format!("{option} is an option of `samovar serve`");
            check_refused(&[&option, "x"], &expected);
            check_refused(&[&option], &expected);
        }
    }
    let expected = "is an option of `samovar serve`";
    for option in ["--config", "--set", "--tls"] {
        check_refused(&[option, "x"], &format!("{option} {expected}"));
    }
    check_refused(
        &["--access-user-or-group", "x"],
        "unknown option \"--access-user-or-group\", which begins as options of `samovar serve`",
    );
    for (option, meant) in [
        (
            "--access-user-file",
            "--access-users-file of `samovar serve`",
        ),
        ("--secret-key-file", "--secret-key-files of `nix-serve`"),
        ("--tls-certficate", "--tls-certificate of `nix-serve`"),
        ("--ssl-certt", "--ssl-cert of `nix-serve`"),
    ] {
        let expected = format!("unknown option {option:?}; did you mean {meant}?");
        check_refused(&[option, "x"], &expected);
    }
    check_warned(
        &["--queue", "5"],
        &["--queue has no effect: it is an option of `samovar serve`"],
    );
}
