//! The policy evaluator decides as a naive one does that follows the written rules literally.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use samovar_nix::{NarHash, SecretKey, StorePath};

use super::*;

const DAY: i64 = 86_400;
const NOW: i64 = 1_000 * DAY;

fn secret(number: u8) -> SecretKey {
    // libsodium's key format is the seed followed by the public key; here the public half is
    // computed.
    let bytes = [[number; 32], [0; 32]].concat();
    SecretKey::parse(&format!("key-{number}:{}", base64(&bytes))).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..three.len()].copy_from_slice(three);
        let number = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let digit = usize::try_from(number >> (18 - 6 * place) & 63).unwrap();
            text.push(if place <= three.len() {
                char::from(DIGITS[digit])
            } else {
                '='
            });
        }
    }
    text
}

/// A path with few possible values for each property, so that rules often match it.
#[derive(Debug, Clone)]
struct Row {
    number: u8,
    name: String,
    signers: Vec<u8>,
    /// Whether the signatures are for another path, so that they are invalid.
    is_forged: bool,
    ultimate: bool,
    age: i64,
}

impl Row {
    fn info(&self) -> PathInfo {
        let hash_part = HashPart::from_bytes([self.number; 20]);
        let mut info = PathInfo {
            path: StorePath::from_base_name(&format!("{hash_part}-{}", self.name)).unwrap(),
            nar_hash: NarHash::from_bytes([1; 32]),
            nar_size: 1,
            references: Vec::new(),
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registration_time: NOW - self.age,
            ultimate: self.ultimate,
            registration: Some(1),
        };
        let text = match self.is_forged {
            true => "1;another path".to_owned(),
            false => info.fingerprint(&StoreDir::default()),
        };
        let sign = |number: &u8| secret(*number).sign(text.as_bytes());
        info.signatures = self.signers.iter().map(sign).collect();
        info
    }
}

/// A rule as the documentation defines it, and the paths to which its roots lead.
#[derive(Debug, Clone)]
struct Written {
    members: Option<Vec<u8>>,
    signers: Vec<u8>,
    ultimate: bool,
    names: Vec<&'static str>,
    min_age: Option<u64>,
    max_age: Option<u64>,
}

impl Written {
    fn rule(&self) -> Rule {
        let seconds = |days: u64| Duration::from_secs(days * DAY.unsigned_abs());
        Rule {
            roots: self
                .members
                .iter()
                .map(|_| PathBuf::from("/roots"))
                .collect(),
            signed_by: self
                .signers
                .iter()
                .map(|number| secret(*number).public())
                .collect(),
            ultimate: self.ultimate,
            names: self.names.iter().map(|&name| name.to_owned()).collect(),
            min_age: self.min_age.map(seconds),
            max_age: self.max_age.map(seconds),
        }
    }

    fn set(&self) -> Option<Box<[HashPart]>> {
        let members = self.members.as_ref()?;
        let mut set: Vec<_> = members
            .iter()
            .map(|number| HashPart::from_bytes([*number; 20]))
            .collect();
        set.sort_unstable();
        Some(set.into())
    }

    fn holds(&self, row: &Row, now: i64) -> bool {
        let age = row.age + now - NOW;
        let days = |days: u64| i64::try_from(days).unwrap() * DAY;
        [
            self.members
                .as_ref()
                .is_none_or(|members| members.contains(&row.number)),
            self.signers.is_empty()
                || !row.is_forged && self.signers.iter().any(|one| row.signers.contains(one)),
            !self.ultimate || row.ultimate,
            self.names.is_empty()
                || self.names.iter().any(|&name| match name {
                    "app-*" => row.name.starts_with("app-"),
                    "*.drv" => row.name.ends_with(".drv"),
                    _ => row.name == name,
                }),
            self.min_age.is_none_or(|least| age >= days(least)),
            self.max_age.is_none_or(|most| age <= days(most)),
        ]
        .iter()
        .all(|holds| *holds)
    }
}

fn allowed(allow: &[Written], deny: &[Written], row: &Row, now: i64) -> bool {
    (allow.is_empty() || allow.iter().any(|rule| rule.holds(row, now)))
        && !deny.iter().any(|rule| rule.holds(row, now))
}

fn policy(allow: &[Written], deny: &[Written]) -> Policy {
    let rules = |rules: &[Written]| rules.iter().map(Written::rule).collect();
    let config = PolicyConfig {
        allow: rules(allow),
        deny: rules(deny),
        hides_store: false,
    };
    let policy = Policy::new(config);
    let sets = allow.iter().chain(deny).filter_map(Written::set);
    policy.roots.set(Some(sets.collect()));
    policy
}

fn rows() -> impl Strategy<Value = Row> {
    let name = prop_oneof![Just("app-1"), Just("lib"), Just("app-1.drv")];
    let age = prop_oneof![0..3 * DAY, Just(DAY), Just(DAY + 1), Just(2 * DAY)];
    let all = (
        0..4_u8,
        name,
        vec(0..3_u8, 0..3),
        prop::bool::weighted(0.1),
        any::<bool>(),
        age,
    );
    all.prop_map(|(number, name, signers, is_forged, ultimate, age)| Row {
        number,
        name: name.to_owned(),
        signers,
        is_forged,
        ultimate,
        age,
    })
}

fn written() -> impl Strategy<Value = Written> {
    let name = prop_oneof![Just("app-*"), Just("*.drv"), Just("lib")];
    let all = (
        option::of(vec(0..4_u8, 0..4)),
        vec(0..3_u8, 0..2),
        prop::bool::weighted(0.2),
        vec(name, 0..2),
        option::weighted(0.2, 0..3_u64),
        option::weighted(0.2, 0..3_u64),
    );
    all.prop_map(
        |(members, signers, ultimate, names, min_age, max_age)| Written {
            members,
            signers,
            ultimate,
            names,
            min_age,
            max_age,
        },
    )
}

proptest! {
    #[test]
    fn decisions_follow_the_definition_of_the_rules(
        allow in vec(written(), 0..3),
        deny in vec(written(), 0..3),
        row in rows(),
        later in prop_oneof![0..4 * DAY, Just(DAY - 1), Just(DAY)],
    ) {
        let (policy, info, dir) = (policy(&allow, &deny), row.info(), StoreDir::default());
        let expected = allowed(&allow, &deny, &row, NOW);
        let decision = policy.decide(&info, &dir, NOW);
        prop_assert_eq!(matches!(decision, Decision::Allowed { .. }), expected);
        if policy.rules_out(&info.path.hash_part()) {
            prop_assert!(matches!(decision, Decision::NotAllowed | Decision::Denied));
        }
        // Until that time, the decision must stay the same.
        if let Decision::Allowed { until } = decision
            && NOW + later < until
        {
            prop_assert!(allowed(&allow, &deny, &row, NOW + later));
        }
    }

    #[test]
    fn no_decision_is_made_while_the_closures_of_roots_are_unknown(
        allow in vec(written(), 0..3),
        deny in vec(written(), 0..3),
        row in rows(),
    ) {
        prop_assume!(allow.iter().chain(&deny).any(|rule| rule.members.is_some()));
        let policy = policy(&allow, &deny);
        policy.roots.set(None);
        prop_assert!(policy.is_unknown());
        let (info, dir) = (row.info(), StoreDir::default());
        prop_assert!(!policy.rules_out(&info.path.hash_part()));
        prop_assert_eq!(policy.decide(&info, &dir, NOW), Decision::Unknown);
    }
}

#[test]
fn ages_count_from_the_second_of_registration() {
    let rule = |min_age, max_age| Written {
        members: None,
        signers: Vec::new(),
        ultimate: false,
        names: Vec::new(),
        min_age,
        max_age,
    };
    let row = |age| Row {
        number: 0,
        name: "a".to_owned(),
        signers: Vec::new(),
        is_forged: false,
        ultimate: false,
        age,
    };
    let decide = |rule: Written, age| {
        policy(&[rule], &[]).decide(&row(age).info(), &StoreDir::default(), NOW)
    };
    let until = |until| Decision::Allowed { until };
    assert_eq!(decide(rule(None, Some(1)), DAY), until(NOW + 1));
    assert_eq!(decide(rule(None, Some(1)), DAY + 1), Decision::NotAllowed);
    assert_eq!(decide(rule(None, Some(1)), 0), until(NOW + DAY + 1));
    assert_eq!(decide(rule(Some(1), None), DAY - 1), Decision::NotAllowed);
    assert_eq!(decide(rule(Some(1), None), DAY), until(FOREVER));
    let denied = policy(&[], &[rule(Some(1), None)]);
    let decision = denied.decide(&row(0).info(), &StoreDir::default(), NOW);
    assert_eq!(decision, until(NOW + DAY));
}

#[test]
fn a_hidden_store_has_no_readable_path_and_deny_rules_apply_to_others() {
    let row = Row {
        number: 1,
        name: "app-1".to_owned(),
        signers: Vec::new(),
        is_forged: false,
        ultimate: true,
        age: DAY,
    };
    let info = row.info();
    let hiding = |deny: Vec<Rule>| {
        Policy::new(PolicyConfig {
            deny,
            hides_store: true,
            ..PolicyConfig::default()
        })
    };
    let decided = |policy: &Policy| policy.decide(&info, &StoreDir::default(), NOW);
    let open = hiding(Vec::new());
    assert!(!open.is_open() && open.is_open_to_foreign());
    assert!(open.rules_out(&info.path.hash_part()));
    assert_eq!(
        open.admit(&info.path.hash_part()),
        Err(Refusal::NotReadable)
    );
    assert_eq!(decided(&open), Decision::NotAllowed);
    assert_eq!(open.decide_by_name(&info.path, false), Some(false));
    assert_eq!(open.decide_by_name(&info.path, true), Some(true));
    let denying = hiding(vec![Rule {
        names: vec!["app-*".to_owned()],
        ..Rule::default()
    }]);
    assert!(!denying.is_open_to_foreign());
    assert_eq!(decided(&denying), Decision::Denied);
}
