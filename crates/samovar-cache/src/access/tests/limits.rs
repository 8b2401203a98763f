//! Rate limits admit exactly the configured number of requests, and remembered passwords expire on
//! time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limited(rate_limit: RateLimit) -> AccessConfig {
    AccessConfig {
        trusted_proxies: vec!["127.0.0.1".into()],
        rate_limit: Some(rate_limit),
        ..AccessConfig::default()
    }
}

/// Sends requests of one client until one is refused. Returns the number of admitted requests.
fn admitted(house: &House, fields: &str) -> usize {
    let answers = (0..100).map(|_| house.ask(fields));
    answers
        .take_while(|answer| answer.starts_with("200 "))
        .count()
}

fn forwarded(address: &str) -> String {
    format!("X-Forwarded-For: {address}\r\n")
}

#[test]
fn the_burst_is_admitted_and_the_next_request_is_refused_for_one_interval() {
    let house = House::new(limited(RateLimit {
        per_second: 4,
        burst: 3,
    }));
    assert_eq!(admitted(&house, ""), 3);
    let refused = "429 Retry-After: 1 Too many requests. Try again later.";
    assert_eq!(house.ask(""), refused);
    house.pass(SECOND / 4 - Duration::from_nanos(1));
    assert_eq!(house.ask(""), refused);
    house.pass(Duration::from_nanos(1));
    assert_eq!(admitted(&house, ""), 1);
    // After a pause of any length, no more than the burst is admitted.
    house.pass(3600 * SECOND);
    assert_eq!(admitted(&house, ""), 3);
}

#[test]
fn each_ipv4_address_and_each_ipv6_network_has_a_limit_of_its_own() {
    let house = House::new(limited(RateLimit {
        per_second: 1,
        burst: 2,
    }));
    assert_eq!(admitted(&house, &forwarded("192.0.2.1")), 2);
    assert_eq!(admitted(&house, &forwarded("192.0.2.2")), 2);
    // An IPv4-mapped IPv6 address counts as the IPv4 address.
    assert_eq!(admitted(&house, &forwarded("::ffff:192.0.2.1")), 0);
    assert_eq!(admitted(&house, &forwarded("2001:db8:0:1::1")), 2);
    assert_eq!(admitted(&house, &forwarded("2001:db8:0:1:ffff::")), 0);
    assert_eq!(admitted(&house, &forwarded("2001:db8:0:2::1")), 2);
    // Clients whose proxy hides their address share one limit.
    assert_eq!(admitted(&house, &forwarded("unknown")), 2);
    assert_eq!(admitted(&house, &forwarded("hidden")), 0);
    // So do those whose proxy sends no header.
    assert_eq!(admitted(&house, ""), 0);
}

#[test]
fn an_authenticated_client_has_one_limit_at_all_its_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let (token, line) = new_token("ci").unwrap();
    let house = House::new(AccessConfig {
        tokens_file: Some(file(dir.path(), "tokens", &line)),
        ..limited(RateLimit {
            per_second: 1,
            burst: 2,
        })
    });
    let from = |address: &str| forwarded(address) + &format!("Authorization: Bearer {token}\r\n");
    assert_eq!(house.ask(&from("192.0.2.1")), "200 ci at once");
    assert_eq!(house.ask(&from("192.0.2.2")), "200 ci at once");
    assert!(house.ask(&from("192.0.2.3")).starts_with("429 "));
}

#[test]
fn refused_clients_are_counted_too() {
    let house = House::new(AccessConfig {
        networks: vec!["198.51.100.0/24".into()],
        ..limited(RateLimit {
            per_second: 1,
            burst: 2,
        })
    });
    let client = forwarded("192.0.2.1");
    let answers: Vec<String> = (0..3).map(|_| house.ask(&client)).collect();
    let statuses: Vec<&str> = answers.iter().map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["403", "403", "429"]);
}

#[test]
fn a_reload_refills_buckets_only_if_the_limit_changes() {
    let config = |burst| {
        limited(RateLimit {
            per_second: 1,
            burst,
        })
    };
    let house = House::new(config(2));
    assert_eq!(admitted(&house, ""), 2);
    house.reload().unwrap();
    assert_eq!(admitted(&house, ""), 0);
    house.change(config(3)).unwrap();
    assert_eq!(admitted(&house, ""), 3);
    let unlimited = AccessConfig::default();
    house.change(unlimited).unwrap();
    assert_eq!(admitted(&house, ""), 100);
}

#[test]
fn ten_wrong_passwords_are_verified_and_then_one_every_six_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let house = House::new(AccessConfig {
        users_file: Some(file(dir.path(), "users", &user("ada", "x"))),
        ..AccessConfig::default()
    });
    let guess = |number: u32| house.basic("ada", &format!("wrong {number}"));
    for number in 0..ATTEMPTS_BURST {
        assert_eq!(guess(number), REFUSED, "{number}");
    }
    house.pass(Duration::from_millis(1));
    let too_many = "429 Retry-After: 6 Too many requests. Try again later.";
    assert_eq!(guess(10), too_many);
    // The right password gets the same answer without being verified, so the answer reveals
    // nothing.
    assert_eq!(house.basic("ada", "x"), too_many);
    house.pass(ATTEMPT_TIME - Duration::from_millis(1) - Duration::from_nanos(1));
    let refused = "429 Retry-After: 1 Too many requests. Try again later.";
    assert_eq!(guess(10), refused);
    house.pass(Duration::from_nanos(1));
    assert_eq!(guess(10), REFUSED);
    house.pass(Duration::from_millis(1));
    assert_eq!(guess(11), too_many);
    // A reload allows no additional guesses.
    house.reload().unwrap();
    assert_eq!(guess(11), too_many);
    house.pass(ATTEMPT_TIME);
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    // A right password uses none of the guesses.
    assert_eq!(guess(12), REFUSED);
}

#[test]
fn a_right_password_is_remembered_for_an_hour_and_a_wrong_one_for_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "users", &user("ada", "x"));
    let new = || {
        House::new(AccessConfig {
            users_file: Some(file.clone()),
            ..AccessConfig::default()
        })
    };
    let house = new();
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    house.pass(3600 * SECOND - Duration::from_nanos(1));
    assert_eq!(house.basic("ada", "x"), "200 ada at once");
    house.pass(Duration::from_nanos(1));
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    // Rarely, a later wrong password takes the place of the remembered one, by chance.
    let is_remembered = (0..4).any(|_| {
        let house = new();
        // A remembered wrong password is refused without being verified. So only the first of
        // these requests counts as a guess.
        for _ in 0..2 * ATTEMPTS_BURST {
            assert_eq!(house.basic("ada", "wrong"), REFUSED);
        }
        for number in 1..ATTEMPTS_BURST {
            assert_eq!(house.basic("ada", &number.to_string()), REFUSED);
        }
        assert!(house.basic("ada", "one more").starts_with("429 "));
        house.basic("ada", "wrong") == REFUSED
    });
    assert!(is_remembered);
}
