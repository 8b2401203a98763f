use super::*;

const HASH: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";

#[track_caller]
fn check_name_rule(name: &str, expected: Result<(), StorePathError>) {
    let base_name = format!("{HASH}-{name}");
    let parsed = StorePath::from_base_name(&base_name);
    assert_eq!(parsed.map(drop), expected, "{name:?}");
}

#[track_caller]
fn check_refused(base_name: &str, error: StorePathError) {
    assert_eq!(StorePath::from_base_name(base_name), Err(error));
}

#[test]
fn parts_of_a_path() {
    let path = StorePath::from_base_name(&format!("{HASH}-base-1.0")).unwrap();
    assert_eq!(path.name(), "base-1.0");
    assert_eq!(path.hash_part().to_string(), HASH);
    assert_eq!(path.base_name(), format!("{HASH}-base-1.0"));
    assert_eq!(path.to_string(), path.base_name());
    assert_eq!(
        path.full(&StoreDir::default()),
        format!("/nix/store/{HASH}-base-1.0")
    );
    assert_eq!(
        path.display(&StoreDir::default()).to_string(),
        path.full(&StoreDir::default())
    );
    assert!(!path.is_derivation());
    assert!(
        StorePath::from_base_name(&format!("{HASH}-a.drv"))
            .unwrap()
            .is_derivation()
    );
    assert!(
        !StorePath::from_base_name(&format!("{HASH}-a.drv.chroot"))
            .unwrap()
            .is_derivation()
    );
}

#[test]
fn names() {
    for name in [
        "a",
        "0",
        "-",
        "+",
        "_",
        "?",
        "=",
        "aZ09+-._?=",
        "a.-b",
        ".a",
        "..a",
        "...",
        "-.",
    ] {
        check_name_rule(name, Ok(()));
    }
    check_name_rule(&"x".repeat(211), Ok(()));
    check_name_rule(&"x".repeat(212), Err(StorePathError::NameTooLong));
    check_name_rule("", Err(StorePathError::NameEmpty));
    for name in [
        " ", "a b", "a/b", "a\n", "a\0", "ä", "a:b", "a%", "a!out", "a~", "a,b", "a;b",
    ] {
        check_name_rule(name, Err(StorePathError::NameCharacter));
    }
}

#[test]
fn leading_dots_are_accepted() {
    for name in [".", "..", ".-", "..-", ".-a", "..-a"] {
        check_name_rule(name, Ok(()));
    }
}

#[test]
fn base_names_without_a_hash_part_are_refused() {
    check_refused("", StorePathError::NoHashPart);
    check_refused(HASH, StorePathError::NoHashPart);
    check_refused(&HASH[1..], StorePathError::NoHashPart);
    check_refused(&format!("{HASH}a-name"), StorePathError::NoHashPart);
    check_refused(&format!("{}-name", &HASH[1..]), StorePathError::NoHashPart);
    let digit = StorePathError::HashPart(HashPartError::Digit);
    check_refused(&format!("{}-name", HASH.to_uppercase()), digit);
    check_refused(&format!("e{}-name", &HASH[1..]), digit);
    // Byte 32 is in the middle of a character.
    check_refused(&format!("{}é-name", &HASH[1..]), StorePathError::NoHashPart);
}

#[test]
fn full_paths_lie_directly_in_the_directory() {
    let dir = StoreDir::default();
    let parse = |full: &str| StorePath::parse(&dir, full).map(|path| path.to_string());
    let base_name = format!("{HASH}-base-1.0");
    assert_eq!(
        parse(&format!("/nix/store/{base_name}")),
        Ok(base_name.clone())
    );
    for full in [
        base_name.clone(),
        format!("/nix/store{base_name}"),
        format!("/nix/store//{base_name}"),
        format!("/nix/store/{base_name}/"),
        format!("/nix/store/{base_name}/bin"),
        format!("/gnu/store/{base_name}"),
        format!("nix/store/{base_name}"),
    ] {
        assert_eq!(parse(&full), Err(StorePathError::NotInStore), "{full}");
    }
}

#[test]
fn ordered_by_the_bytes_of_the_base_name() {
    // Ordered by decoded hash parts, the first path would be the greater one.
    let first = StorePath::from_base_name("0zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz-a").unwrap();
    let second = StorePath::from_base_name("10000000000000000000000000000000-a").unwrap();
    let third = StorePath::from_base_name("10000000000000000000000000000000-a.b").unwrap();
    assert!(first < second && second < third);
    assert!(first.hash_part() > second.hash_part());
}
