//! Tokens for ID tokens.

use super::*;
use crate::metadata::exchanges::{COUNT_MAX, issue, remove_expired};

fn of_job(name: &str) -> NewToken {
    NewToken {
        cache: Some(Glob::new("team-*")),
        rights: "read,push".parse().unwrap(),
        ..new_token(name, None)
    }
}

fn hash(number: u8) -> TokenHash {
    TokenHash([number; 32])
}

fn later(seconds: i64) {
    CLOCK.store(START + seconds, Ordering::Relaxed);
}

/// Issues a token that is valid for 100 s. Returns what was done, and until when the token is
/// valid, in seconds after the start.
fn issued(database: &Database, number: u8, new: &NewToken, renewed: Option<u8>) -> (char, i64) {
    let renewed = renewed.map(hash);
    match issue(database, &hash(number), new, 100, renewed.as_ref()).unwrap() {
        Issued::Added(at) => ('+', at - START),
        Issued::Extended(at) => ('=', at - START),
        Issued::TooMany => ('!', 0),
    }
}

#[test]
fn a_valid_token_of_the_same_job_is_extended() {
    with_each(|database| {
        let job = of_job("oidc:github:example/app:1");
        let issue = |number, new: &NewToken, renewed| issued(database, number, new, renewed);
        assert_eq!(issue(1, &job, None), ('+', 100));
        later(50);
        assert_eq!(issue(2, &job, Some(1)), ('=', 150));
        assert_eq!(tokens::all(database).unwrap().len(), 1);
        let found = tokens::find(database, &hash(1)).unwrap().unwrap();
        assert_eq!(found.expires_at, Some(START + 150));
        assert_eq!((&found.cache, found.rights), (&job.cache, job.rights));
        // Another job, other rights, other patterns, an unknown token.
        let other_rights = NewToken {
            rights: "read".parse().unwrap(),
            ..job.clone()
        };
        let other_names = NewToken {
            names: Some(Glob::new("a")),
            ..job.clone()
        };
        let other_job = of_job("oidc:github:example/app:2");
        for (number, other) in [(3, &other_job), (4, &other_rights), (5, &other_names)] {
            assert_eq!(issue(number, other, Some(1)), ('+', 150));
        }
        assert_eq!(issue(6, &job, Some(99)), ('+', 150));
        // An expired one, and a revoked one.
        later(150);
        assert_eq!(issue(7, &job, Some(1)), ('+', 250));
        tokens::revoke(database, &job.name).unwrap();
        assert_eq!(issue(8, &job, Some(7)), ('+', 250));
    });
}

#[test]
fn a_job_has_a_limited_number_of_valid_tokens() {
    with_each(|database| {
        let job = of_job("oidc:github:example/app:1");
        let issue = |number: i64, new: &NewToken| {
            issued(database, u8::try_from(number).unwrap(), new, None)
        };
        for number in 0..COUNT_MAX {
            assert_eq!(issue(number, &job), ('+', 100));
        }
        assert_eq!(issue(COUNT_MAX, &job), ('!', 0));
        let other = of_job("oidc:github:example/app:2");
        assert_eq!(issue(COUNT_MAX + 1, &other), ('+', 100));
        later(100);
        assert_eq!(issue(COUNT_MAX + 2, &job), ('+', 200));
    });
}

#[test]
fn expired_tokens_of_oidc_are_deleted_unless_paths_name_them() {
    with_each(|database| {
        let world = world(database);
        let names = ["oidc:a:1", "oidc:a:2", "oidc:a:3", "oidcx"];
        for (number, name) in (11..).zip(names) {
            issued(database, number, &of_job(name), None);
        }
        let id = |number| tokens::find(database, &hash(number)).unwrap().unwrap().id;
        let path = NewPath {
            token: Some(id(12)),
            ..world.path(20, &[])
        };
        nars::add(database, id(12), &[new_nar(20)]).unwrap();
        let published = world.publish(&[&[path]]);
        assert!(
            matches!(published[..], [ref one] if one[..] == [Published::New]),
            "{published:?}"
        );
        let limits = PushLimits {
            lifetime: 10,
            tolerance: 0,
            count_max: 5,
        };
        pushes::open(database, world.cache, id(13), &limits).unwrap();
        for (seconds, count) in [(100, 0), (100 + DAY, 0), (101 + DAY, 1), (102 + DAY, 0)] {
            later(seconds);
            assert_eq!(remove_expired(database).unwrap(), count, "{seconds}");
        }
        let left = tokens::all(database).unwrap();
        let left: Vec<&str> = left.iter().map(|token| &*token.name).collect();
        assert_eq!(left, ["oidcx", "oidc:a:3", "oidc:a:2", "ci"]);
        // The row of a push is deleted with the push.
        pushes::remove_expired(database).unwrap();
        assert_eq!(remove_expired(database).unwrap(), 1);
    });
}
