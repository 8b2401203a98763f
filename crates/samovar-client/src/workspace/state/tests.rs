use super::super::mode::{Lower, Overlay};
use super::*;

const MANIFEST: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app.manifest";

fn state() -> State {
    State {
        url: "http://localhost:5000/a".to_owned(),
        name: "mr/app \u{e4}".parse().unwrap(),
        mode: Mode::Overlay(Overlay {
            layers: "/a\n b".into(),
            lower: Some(Lower {
                store_dir: "/gnu/store".to_owned(),
                manifest: StorePath::from_base_name(MANIFEST).unwrap(),
            }),
        }),
        is_public: true,
        keys: vec![PublicKey::parse(&format!("a-1:{}=", "A".repeat(43))).unwrap(); 2],
        base: Some(Base {
            version: Version {
                number: 3,
                lineage: Some("0a".repeat(16).parse().unwrap()),
            },
            manifest: StorePath::from_base_name(MANIFEST).unwrap(),
            nar_hash: NarHash::from_bytes([7; 32]),
            synced_at: 1_700_000_000,
        }),
    }
}

#[test]
fn a_state_is_parsed_as_it_was_written() {
    let mut state = state();
    assert_eq!(State::parse(&state.text()).unwrap(), state);
    // As it was written before there were lineages.
    if let Some(base) = &mut state.base {
        base.version.lineage = None;
    }
    assert!(state.text().contains("\nbase 3 "));
    assert_eq!(State::parse(&state.text()).unwrap(), state);
    state.base = None;
    state.is_public = false;
    state.keys.clear();
    state.mode = Mode::Directory;
    assert_eq!(State::parse(&state.text()).unwrap(), state);
}

#[test]
fn a_truncated_state_is_refused_or_has_no_base() {
    let state = state();
    let text = state.text();
    for len in (0..text.len()).filter(|len| text.is_char_boundary(*len)) {
        if let Ok(parsed) = State::parse(&text[..len]) {
            assert_eq!((parsed.base, parsed.name), (None, state.name.clone()));
        }
    }
    assert!(State::parse(&format!("{text}x\n")).is_err());
}
