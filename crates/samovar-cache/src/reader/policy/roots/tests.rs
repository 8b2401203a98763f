//! Closures of roots follow changes of links and store, and an error never narrows a deny rule.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path};

use samovar_nix::{PathInfo, StoreDir};
use tempfile::TempDir;

use super::*;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::{Recorder, shared};

/// One rule with one root: the path `root` in a temporary directory.
struct Fixture {
    dir: TempDir,
    store: MemoryStore,
    events: Arc<Recorder>,
    roots: Arc<Roots>,
    check: RootsCheck,
}

impl Fixture {
    fn new(denies: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        let (shared, events) = shared(&store, None);
        let roots = Arc::new(Roots::new(vec![RuleRoots {
            roots: vec![dir.path().join("root")],
            denies,
        }]));
        Self {
            check: RootsCheck::new(shared, Arc::clone(&roots), None),
            dir,
            store,
            events,
            roots,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Links `name` to a store path.
    fn link(&self, name: &str, info: &PathInfo) {
        symlink(in_store(info), self.at(name)).unwrap();
    }

    /// Checks the roots. Returns for each path whether the closure contains it, or `None` if the
    /// closure is unknown.
    fn check<const N: usize>(&mut self, infos: [&PathInfo; N]) -> Option<[bool; N]> {
        self.check.run();
        self.members(infos)
    }

    fn members<const N: usize>(&self, infos: [&PathInfo; N]) -> Option<[bool; N]> {
        let sets = self.roots.sets()?;
        Some(infos.map(|info| sets.contains(0, &info.path.hash_part())))
    }
}

fn in_store(info: &PathInfo) -> PathBuf {
    Path::new(StoreDir::default().as_str()).join(info.path.base_name())
}

/// Registers `a`, which refers to `b`, which refers to `c` and to itself.
fn chain(store: &MemoryStore) -> [PathInfo; 3] {
    let infos = ["a", "b", "c"].map(|name| store.add_file(name, name.as_bytes()));
    let [a, b, c] = infos.each_ref().map(|info| info.path.clone());
    store.change(&a, |info| info.references = vec![b.clone()]);
    store.change(&b, |info| info.references = vec![b.clone(), c]);
    infos
}

#[test]
fn a_root_leads_to_its_closure_and_to_nothing_else() {
    let mut fixture = Fixture::new(false);
    let [a, b, c] = chain(&fixture.store);
    let other = fixture.store.add_file("other", b"other");
    fixture.link("root", &b);
    let members = fixture.check([&a, &b, &c, &other]);
    assert_eq!(members, Some([false, true, true, false]));
}

#[test]
fn a_root_that_appears_vanishes_or_moves_is_followed_by_the_next_check() {
    let mut fixture = Fixture::new(false);
    let [a, _, c] = chain(&fixture.store);
    assert_eq!(fixture.check([&a, &c]), Some([false, false]));
    let empty = fixture.roots.generation();
    fixture.link("root", &a);
    assert_eq!(fixture.check([&a, &c]), Some([true, true]));
    assert_eq!(fixture.roots.generation(), empty + 1);
    // If the closure is unchanged, the generation is too: answers made under it stay valid.
    assert_eq!(fixture.check([&a, &c]), Some([true, true]));
    assert_eq!(fixture.roots.generation(), empty + 1);
    fs::remove_file(fixture.at("root")).unwrap();
    fixture.link("root", &c);
    assert_eq!(fixture.check([&a, &c]), Some([false, true]));
    fs::remove_file(fixture.at("root")).unwrap();
    assert_eq!(fixture.check([&a, &c]), Some([false, false]));
    assert_eq!(fixture.roots.generation(), empty + 3);
}

#[test]
fn a_missing_root_of_a_deny_rule_makes_the_closure_unknown() {
    let mut fixture = Fixture::new(true);
    let [a, ..] = chain(&fixture.store);
    fixture.link("root", &a);
    assert_eq!(fixture.check([&a]), Some([true]));
    fs::remove_file(fixture.at("root")).unwrap();
    assert_eq!(fixture.check([&a]), None);
    assert_eq!(fixture.check([&a]), None);
    assert_eq!(fixture.events.take(), ["roots failed"], "reported once");
    fixture.link("root", &a);
    assert_eq!(fixture.check([&a]), Some([true]));
    assert_eq!(fixture.events.take(), ["roots recovered"]);
}

#[test]
fn forty_links_in_a_row_are_followed_as_by_the_kernel() {
    for (count, is_followed) in [(1, true), (HOP_COUNT_MAX, true), (HOP_COUNT_MAX + 1, false)] {
        let mut fixture = Fixture::new(true);
        let [a, ..] = chain(&fixture.store);
        symlink("1", fixture.at("root")).unwrap();
        for number in 1..count {
            let (name, target) = (number.to_string(), (number + 1).to_string());
            symlink(target, fixture.at(&name)).unwrap();
        }
        // The root itself is the first link.
        let last = if count == 1 {
            "root".to_owned()
        } else {
            (count - 1).to_string()
        };
        fs::remove_file(fixture.at(&last)).unwrap();
        fixture.link(&last, &a);
        let expected = is_followed.then_some([true]);
        assert_eq!(fixture.check([&a]), expected, "{count} links");
    }
}

#[test]
fn a_cycle_of_links_is_an_error_and_not_an_endless_search() {
    for denies in [false, true] {
        let mut fixture = Fixture::new(denies);
        let [a, ..] = chain(&fixture.store);
        symlink("other", fixture.at("root")).unwrap();
        symlink("root", fixture.at("other")).unwrap();
        assert_eq!(fixture.check([&a]), None);
        assert_eq!(fixture.events.take(), ["roots failed"]);
    }
}

#[test]
fn a_folder_leads_to_all_store_paths_linked_in_it_and_in_folders_below() {
    let mut fixture = Fixture::new(true);
    let [a, b, c] = chain(&fixture.store);
    let other = fixture.store.add_file("other", b"other");
    fs::create_dir_all(fixture.at("root/one/two")).unwrap();
    fixture.link("elsewhere", &other);
    fixture.link("root/b", &b);
    // A link to a link outside, as Nix makes them in `gcroots/auto`.
    symlink(fixture.at("elsewhere"), fixture.at("root/one/two/other")).unwrap();
    symlink("nowhere", fixture.at("root/dangling")).unwrap();
    symlink("..", fixture.at("root/one/cycle")).unwrap();
    symlink("/", fixture.at("root/one/everything")).unwrap();
    fs::write(fixture.at("root/file"), b"").unwrap();
    let members = fixture.check([&a, &b, &c, &other]);
    assert_eq!(members, Some([false, true, true, true]));
    fs::remove_file(fixture.at("elsewhere")).unwrap();
    let members = fixture.check([&a, &b, &c, &other]);
    assert_eq!(members, Some([false, true, true, false]));
}

#[test]
fn a_relative_link_may_lead_to_the_store_through_parent_directories() {
    for root in ["root", "root/link"] {
        let mut fixture = Fixture::new(true);
        let [a, ..] = chain(&fixture.store);
        let link = fixture.at(root);
        let parent = link.parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        let is_name = |one: &Component<'_>| matches!(one, Component::Normal(_));
        let up = parent.components().filter(is_name).map(|_| "..");
        let target = up
            .collect::<PathBuf>()
            .join(in_store(&a).strip_prefix("/").unwrap());
        symlink(&target, &link).unwrap();
        assert_eq!(fixture.check([&a]), Some([true]), "{root} -> {target:?}");
    }
}

#[test]
fn a_relative_link_to_an_existing_store_path_is_not_taken_for_a_folder() {
    let temporary = tempfile::tempdir().unwrap();
    let base = temporary.path().canonicalize().unwrap();
    let store_dir = StoreDir::new(base.join("store").to_str().unwrap()).unwrap();
    let name = format!("{}-a", "0".repeat(32));
    fs::create_dir_all(base.join("store").join(&name)).unwrap();
    fs::create_dir(base.join("roots")).unwrap();
    symlink(Path::new("../store").join(&name), base.join("roots/link")).unwrap();
    for root in ["roots", "roots/link"] {
        let rule = RuleRoots {
            roots: vec![base.join(root)],
            denies: true,
        };
        let found = rule.store_paths(&store_dir).unwrap();
        let expected = StorePath::from_base_name(&name).unwrap();
        assert_eq!(found, BTreeSet::from([expected]), "{root}");
    }
}

#[test]
fn a_link_to_a_file_in_a_store_path_leads_to_that_path() {
    let mut fixture = Fixture::new(true);
    let [a, ..] = chain(&fixture.store);
    symlink(in_store(&a).join("bin/a"), fixture.at("root")).unwrap();
    assert_eq!(fixture.check([&a]), Some([true]));
}

#[test]
fn a_root_that_is_a_file_is_an_error() {
    for denies in [false, true] {
        let mut fixture = Fixture::new(denies);
        let [a, ..] = chain(&fixture.store);
        fs::write(fixture.at("root"), b"").unwrap();
        assert_eq!(fixture.check([&a]), None);
    }
}

#[test]
fn folders_too_deep_to_be_searched_are_an_error_of_a_deny_rule_only() {
    for (depth, denies, expected) in [
        (DEPTH_MAX, false, Some([true])),
        (DEPTH_MAX, true, Some([true])),
        (DEPTH_MAX + 1, false, Some([false])),
        (DEPTH_MAX + 1, true, None),
    ] {
        let mut fixture = Fixture::new(denies);
        let [a, ..] = chain(&fixture.store);
        let folder = format!("root{}", "/x".repeat(depth));
        fs::create_dir_all(fixture.at(&folder)).unwrap();
        fixture.link(&format!("{folder}/link"), &a);
        assert_eq!(fixture.check([&a]), expected, "{depth} {denies}");
    }
}

#[test]
fn an_unreadable_folder_makes_the_closure_of_a_deny_rule_unknown() {
    for (denies, expected) in [(false, Some([true])), (true, None)] {
        let mut fixture = Fixture::new(denies);
        let [a, ..] = chain(&fixture.store);
        fs::create_dir_all(fixture.at("root/closed")).unwrap();
        fixture.link("root/link", &a);
        let closed = fixture.at("root/closed");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        // The superuser can read it in spite of its mode.
        let is_readable = closed.read_dir().is_ok();
        let members = fixture.check([&a]);
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        if !is_readable {
            assert_eq!(members, expected, "denies: {denies}");
        }
        // Not even the superuser can follow a cycle of links.
        symlink("cycle", fixture.at("root/cycle")).unwrap();
        assert_eq!(fixture.check([&a]), expected, "denies: {denies}");
    }
}

#[test]
fn a_store_that_fails_at_any_look_up_leaves_the_last_closure_in_use() {
    let mut fixture = Fixture::new(true);
    let [a, b, c] = chain(&fixture.store);
    let other = fixture.store.add_file("other", b"other");
    fixture.link("root", &other);
    let before = Some([false, false, false, true]);
    assert_eq!(fixture.check([&a, &b, &c, &other]), before);
    let generation = fixture.roots.generation();
    fs::remove_file(fixture.at("root")).unwrap();
    fixture.link("root", &a);
    // The check looks up the target once, and then each member of the closure once.
    for count in 0..4 {
        fixture.store.fail_after(Some(count));
        assert_eq!(fixture.check([&a, &b, &c, &other]), before, "{count}");
    }
    assert_eq!(fixture.events.take(), ["store failed"], "reported once");
    assert_eq!(fixture.roots.generation(), generation);
    fixture.store.fail_after(Some(4));
    let after = Some([true, true, true, false]);
    assert_eq!(fixture.check([&a, &b, &c, &other]), after);
    assert_eq!(fixture.events.take(), ["denials ended", "store recovered"]);
}

#[test]
fn an_unavailable_store_leaves_closures_unknown_that_were_never_read() {
    let mut fixture = Fixture::new(false);
    let [a, ..] = chain(&fixture.store);
    fixture.link("root", &a);
    fixture.store.fail(true);
    assert_eq!(fixture.check([&a]), None);
    fixture.store.fail(false);
    assert_eq!(fixture.check([&a]), Some([true]));
}

#[test]
fn a_target_is_in_the_closure_while_it_is_registered() {
    let mut fixture = Fixture::new(false);
    let [a, b, _] = chain(&fixture.store);
    fixture.link("root", &a);
    fixture.store.unregister(&a.path);
    assert_eq!(fixture.check([&a, &b]), Some([false, false]));
    fixture.store.restore(&a);
    let c = fixture.store.add_file("d", b"d");
    // The path is registered anew with other references, so the old ones must be dropped.
    fixture.store.change(&a.path, |info| {
        info.references = vec![c.path.clone()];
        info.registration = Some(100);
    });
    assert_eq!(fixture.check([&a, &b, &c]), Some([true, false, true]));
    fixture.store.change(&a.path, |info| {
        info.references = vec![b.path.clone()];
        info.registration = Some(101);
    });
    assert_eq!(fixture.check([&a, &b, &c]), Some([true, true, false]));
}

#[test]
fn a_target_is_read_anew_only_if_its_registration_changed() {
    let mut fixture = Fixture::new(false);
    let [a, _, c] = chain(&fixture.store);
    fixture.link("root", &a);
    assert_eq!(fixture.check([&a, &c]), Some([true, true]));
    fixture.store.fail_after(Some(1));
    assert_eq!(fixture.check([&a, &c]), Some([true, true]));
    assert_eq!(fixture.events.take(), [""; 0]);
}

#[test]
fn another_path_with_the_hash_part_of_a_target_is_not_the_target() {
    let mut fixture = Fixture::new(false);
    let [a, ..] = chain(&fixture.store);
    let name = format!("{}-another", a.path.hash_part());
    symlink(Path::new("/nix/store").join(name), fixture.at("root")).unwrap();
    assert_eq!(fixture.check([&a]), Some([false]));
}

#[test]
fn the_first_check_reports_errors_of_roots_and_of_the_store() {
    let deadline = Instant::now() + FIRST_CHECK_TIME;
    let fixture = Fixture::new(true);
    let missing = fixture.check.first(deadline).unwrap_err();
    assert!(matches!(missing, RootsCheckError::Roots(_)), "{missing}");
    let fixture = Fixture::new(true);
    let [a, ..] = chain(&fixture.store);
    fixture.link("root", &a);
    fixture.store.fail(true);
    let unavailable = fixture.check.first(deadline).unwrap_err();
    assert!(
        matches!(unavailable, RootsCheckError::Store(_)),
        "{unavailable}"
    );
}

#[test]
fn a_deny_rule_keeps_what_the_store_has_collected() {
    for (denies, expected) in [(false, [false; 3]), (true, [true; 3])] {
        let mut fixture = Fixture::new(denies);
        let [a, b, c] = chain(&fixture.store);
        fixture.link("root", &a);
        assert_eq!(fixture.check([&a, &b, &c]), Some([true; 3]));
        for info in [&a, &b, &c] {
            fixture.store.unregister(&info.path);
        }
        assert_eq!(fixture.check([&a, &b, &c]), Some(expected), "{denies}");
    }
}

#[test]
fn a_deny_rule_contains_a_target_that_the_store_never_had() {
    for denies in [false, true] {
        let mut fixture = Fixture::new(denies);
        let [a, b, c] = chain(&fixture.store);
        let absent = fixture.store.add_file("absent", b"absent");
        fixture.store.unregister(&absent.path);
        fixture.link("root", &absent);
        assert_eq!(fixture.check([&absent, &a]), Some([denies, false]));
        // It refers to a path of the store once it is there.
        let again = fixture.store.add_file("absent", b"absent");
        fixture
            .store
            .change(&again.path, |info| info.references = vec![b.path.clone()]);
        assert_eq!(fixture.check([&absent, &b, &c]), Some([true; 3]));
    }
}

#[test]
fn a_deny_rule_that_loses_paths_says_so() {
    let mut fixture = Fixture::new(true);
    let [a, b, _] = chain(&fixture.store);
    fixture.link("root", &a);
    fixture.check([&a]);
    fs::remove_file(fixture.at("root")).unwrap();
    fixture.link("root", &b);
    assert_eq!(fixture.check([&a, &b]), Some([false, true]));
    assert_eq!(fixture.events.take(), ["denials ended"]);
}

#[test]
fn a_link_to_a_folder_is_followed_under_a_deny_rule_only() {
    for denies in [false, true] {
        let mut fixture = Fixture::new(denies);
        let [a, ..] = chain(&fixture.store);
        fs::create_dir(fixture.at("root")).unwrap();
        fs::create_dir(fixture.at("more")).unwrap();
        fixture.link("more/a", &a);
        symlink(fixture.at("more"), fixture.at("root/more")).unwrap();
        symlink(fixture.at("root"), fixture.at("more/cycle")).unwrap();
        assert_eq!(fixture.check([&a]), Some([denies]));
    }
}
