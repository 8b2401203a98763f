use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef";

fn registered() -> Registered {
    Registered {
        dir: Path::new("/state").join(ID),
        path: PathBuf::from(OsString::from_vec(b"/a\n%41\xff".to_vec())),
        inode: 7,
        device: 3,
        born: Some((1_700_000_000, 5)),
        boot: boot(),
        machine: machine(),
        is_marked: true,
        mount: None,
    }
}

#[test]
fn what_identifies_a_directory_is_parsed_as_it_was_written() {
    let mut one = registered();
    for _ in 0..2 {
        let text = one.text();
        let parsed = Registered::parse(one.dir.clone(), &text).unwrap();
        assert_eq!(parsed, one);
        let cut = text.strip_suffix('\n').unwrap();
        assert!(Registered::parse(one.dir.clone(), cut).is_err());
        (one.born, one.is_marked) = (None, false);
        one.mount = Some("samovar:app-x".to_owned());
    }
}

#[test]
fn a_directory_is_found_again_and_no_other_one() {
    let one = registered();
    let identity = Identity {
        inode: one.inode,
        device: one.device,
        born: one.born,
        mark: Some(ID.to_owned()),
    };
    let elsewhere = Path::new("/b");
    assert!(one.is_of(elsewhere, &identity));
    // The device has another number since it was mounted again.
    let mut other = identity.clone();
    other.device = 4;
    assert!(one.is_of(&one.path, &other) && one.is_of(elsewhere, &other));
    // Copies, and new directories with the inode of a removed one.
    for change in [
        |one: &mut Identity| one.inode = 8,
        |one: &mut Identity| one.born = Some((1_700_000_000, 6)),
    ] {
        let mut other = identity.clone();
        change(&mut other);
        assert!(!one.is_of(&one.path, &other), "{other:?}");
    }
    // A program has removed the attribute.
    let bare = Identity {
        mark: None,
        ..identity.clone()
    };
    assert!(one.is_of(elsewhere, &bare));
    let unborn = Identity {
        born: None,
        ..bare.clone()
    };
    assert!(!one.is_of(&one.path, &unborn));
    // Without attributes and times of birth, the path decides.
    let plain = Registered {
        born: None,
        is_marked: false,
        ..one.clone()
    };
    assert!(plain.is_of(&plain.path, &unborn) && !plain.is_of(elsewhere, &unborn));
    let other_device = Identity {
        device: 4,
        ..unborn.clone()
    };
    assert!(!plain.is_of(&plain.path, &other_device));
    let rebooted = Registered {
        boot: "other".to_owned(),
        ..plain.clone()
    };
    assert!(rebooted.is_of(&plain.path, &other_device));
    let on_another_machine = Registered {
        machine: "other".to_owned(),
        ..plain
    };
    assert!(!on_another_machine.is_of(&on_another_machine.path, &unborn));
}
