//! Methods of admission are tried in order, and a reload applies changes to all of them.

use super::*;

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_client_of_an_admitted_network_needs_no_verified_password() {
    let dir = tempfile::tempdir().unwrap();
    let house = House::new(AccessConfig {
        users_file: Some(file(dir.path(), "users", &user("ada", "x"))),
        networks: vec!["127.0.0.0/8".into()],
        ..AccessConfig::default()
    });
    // Neither right nor wrong passwords cause a computation or count as guesses.
    for number in 0..2 * ATTEMPTS_BURST {
        let answer = house.basic("ada", &number.to_string());
        assert_eq!(answer, "200 somebody at once");
    }
    assert_eq!(house.basic("ada", "x"), "200 somebody at once");
    for fields in ["", &bearer("unknown"), "Authorization: Basic !\r\n"] {
        assert_eq!(house.ask(fields), "200 somebody at once", "{fields}");
    }
}

#[test]
fn a_token_names_the_client_before_a_user_and_a_network_do() {
    let dir = tempfile::tempdir().unwrap();
    let (token, line) = new_token("ci").unwrap();
    let house = House::new(AccessConfig {
        users_file: Some(file(dir.path(), "users", &user("ada", &token))),
        tokens_file: Some(file(dir.path(), "tokens", &line)),
        networks: vec!["127.0.0.0/8".into()],
        ..AccessConfig::default()
    });
    assert_eq!(house.ask(&bearer(&token)), "200 ci at once");
    assert_eq!(house.basic("ada", &token), "200 ci at once");
}

#[test]
fn a_forged_forwarding_header_admits_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (token, line) = new_token("ci").unwrap();
    let house = House::new(AccessConfig {
        tokens_file: Some(file(dir.path(), "tokens", &line)),
        networks: vec!["192.0.2.0/24".into()],
        trusted_proxies: vec!["127.0.0.1".into(), "10.0.0.0/8".into()],
        ..AccessConfig::default()
    });
    let ask = |value: &str| house.ask(&format!("X-Forwarded-For: {value}\r\n"));
    assert_eq!(ask("192.0.2.1"), "200 somebody at once");
    assert_eq!(ask("192.0.2.1, 10.0.0.9"), "200 somebody at once");
    for forged in [
        "192.0.2.1, 203.0.113.1",
        "192.0.2.1, 203.0.113.1, 10.0.0.9",
        "192.0.2.1\r\nX-Forwarded-For: 203.0.113.1",
        "192.0.2.1, unknown",
        "192.0.2.1x",
        "10.0.0.9",
    ] {
        assert_eq!(ask(forged), REFUSED, "{forged}");
        // A token admits clients from any address.
        let fields = format!("X-Forwarded-For: {forged}\r\n{}", bearer(&token));
        assert_eq!(house.ask(&fields), "200 ci at once", "{forged}");
    }
}

#[test]
fn a_reload_changes_which_tokens_are_admitted_or_fails_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (old, old_line) = new_token("ci").unwrap();
    let (new, new_line) = new_token("ci").unwrap();
    let path = file(dir.path(), "tokens", &old_line);
    let house = House::new(AccessConfig {
        tokens_file: Some(path.clone()),
        ..AccessConfig::default()
    });
    let statuses = || {
        let statuses = [&old, &new].map(|token| house.ask(&bearer(token)));
        statuses.map(|answer| answer[..3].to_owned())
    };
    assert_eq!(statuses(), ["200", "401"]);
    // While one token replaces another, both are admitted.
    std::fs::write(&path, format!("{old_line}\n{new_line}\n")).unwrap();
    assert_eq!(statuses(), ["200", "401"], "not read before a reload");
    house.reload().unwrap();
    assert_eq!(statuses(), ["200", "200"]);
    std::fs::write(&path, "nonsense").unwrap();
    house.reload().unwrap_err();
    assert_eq!(statuses(), ["200", "200"]);
    std::fs::write(&path, &new_line).unwrap();
    house.reload().unwrap();
    assert_eq!(statuses(), ["401", "200"]);
}

#[test]
fn a_reload_that_removes_the_last_user_admits_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "users", &user("ada", "x"));
    let house = House::new(AccessConfig {
        users_file: Some(path.clone()),
        ..AccessConfig::default()
    });
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    std::fs::write(&path, "").unwrap();
    house.reload().unwrap();
    assert_eq!(house.basic("ada", "x"), REFUSED);
    assert_eq!(house.ask(""), REFUSED);
}
