//! A deny rule by roots hides uploaded paths as it hides those of the Nix store: their narinfos,
//! listings, NARs and logs. While a root cannot be followed, nothing is told about any path.

mod support;
mod support_protocol;
mod support_uploads;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use support_protocol::{Push, open_line};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;

/// A server that denies what `root` leads to. `app` refers to `lib`; `other` has the same NAR as
/// `twin`.
struct Scene {
    site: Site,
    root: PathBuf,
    server: Running,
    lib: MadePath,
    app: MadePath,
    twin: MadePath,
    other: MadePath,
}

impl Scene {
    fn new() -> Self {
        let site = Site::new();
        let root = site.dir().join("root");
        site.configure_empty(&format!("[policy]\ndeny = [{{ roots = [{root:?}] }}]\n"));
        let lib = MadePath::new("lib");
        let app = MadePath::new("app").referring_to(&lib.store_path);
        let twin = MadePath::new("twin").containing(b"same");
        let other = MadePath::new("other").containing(b"same");
        // The root leads to a path that the Nix store never had.
        symlink(&app.store_path, &root).expect("the directory is writable");
        let server = site.start();
        let token = site.token(&[]);
        for path in [&lib, &app, &twin, &other] {
            server.publish(&token, path);
            let log = format!("/upload/log/{}", &path.store_path[11..]);
            assert_eq!(server.put(&token, &log, b"built\n").status, 200);
        }
        Self {
            site,
            root,
            server,
            lib,
            app,
            twin,
            other,
        }
    }

    /// Returns the statuses of all URLs about a path.
    fn statuses(&self, path: &MadePath) -> Vec<u16> {
        let name = &path.store_path[11..];
        let logs = [format!("/log/{name}"), format!("/build-log/{name}")];
        let shared = [path.target(), path.listing_target(), path.file_target()];
        let below = shared.iter().map(|target| format!("/upload{target}"));
        let mut targets: Vec<String> = below.collect();
        targets.push(format!("/upload{}", logs[0]));
        targets.push(format!("/path/{}", path.hash_part()));
        targets.extend(shared.into_iter().chain(logs));
        let statuses = targets.iter().map(|target| self.server.get(target).status);
        statuses.collect()
    }

    #[track_caller]
    fn assert_all(&self, path: &MadePath, status: u16) {
        let statuses = self.statuses(path);
        let is_it = |found: &u16| *found == status;
        assert!(
            statuses.iter().all(is_it),
            "{}: {statuses:?}",
            path.store_path
        );
    }

    fn waits_for(&self, path: &MadePath, status: u16) {
        let target = format!("/upload{}", path.target());
        eventually("the roots are followed", || {
            self.server.get(&target).status == status
        });
    }
}

#[test]
fn roots_hide_uploaded_paths_with_their_references_nars_and_logs() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    for hidden in [&scene.app, &scene.lib] {
        scene.assert_all(hidden, 404);
    }
    for shown in [&scene.twin, &scene.other] {
        scene.assert_all(shown, 200);
    }
    let list = scene.server.get("/uploads").text();
    assert!(!list.contains(scene.app.hash_part()), "{list}");
    assert!(list.contains(scene.other.hash_part()), "{list}");
    // A push is not told about hidden paths either, nor may it use their NARs.
    let token = scene.site.token(&["--name", "second"]);
    let push = Push::new(&scene.server, &token);
    let copy = MadePath::new("copy").containing(b"app");
    assert_eq!(copy.nar.len(), scene.app.nar.len());
    let (_, needs) = push.open(&[&scene.app, &copy, &scene.twin]);
    assert_eq!(needs, ["need", "need", "have"]);
    let text = scene
        .app
        .narinfo()
        .replace(&scene.app.store_path, &copy.store_path);
    let text = text.replace(&scene.lib.store_path[11..], "");
    let stolen = scene
        .server
        .put(&token, &format!("/upload{}", copy.target()), text);
    assert_eq!(stolen.status, 409, "{}", stolen.text());
}

/// The NAR of a hidden path has another file after a push of another path with the same contents.
#[test]
fn contents_of_a_hidden_path_can_be_pushed_in_another_compression() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    let token = scene.site.token(&["--name", "second"]);
    let push = Push::new(&scene.server, &token);
    let copy = MadePath::new("copy").containing(b"app").compressed("zstd");
    let more = MadePath::new("more").containing(b"app").compressed("zstd");
    for (path, expected) in [(&copy, "need"), (&more, "link")] {
        let (id, needs) = push.open(&[path]);
        assert_eq!(needs, [expected]);
        if expected == "need" {
            assert!(push.pack(&id, &[path])[0].starts_with("kept "));
        }
        push.published(&id, &[path]);
        scene.server.assert_serves(path);
    }
    scene.assert_all(&scene.app, 404);
}

#[test]
fn a_nar_is_served_while_one_of_its_paths_may_be_read() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    fs::remove_file(&scene.root).unwrap();
    fs::create_dir(&scene.root).unwrap();
    symlink(&scene.twin.store_path, scene.root.join("twin")).unwrap();
    scene.waits_for(&scene.twin, 404);
    assert_eq!(scene.server.get(&scene.twin.file_target()).status, 200);
    // A link to a folder of links is followed.
    let more = scene.site.dir().join("more");
    fs::create_dir(&more).unwrap();
    symlink(&scene.other.store_path, more.join("other")).unwrap();
    symlink(&scene.root, more.join("cycle")).unwrap();
    symlink(&more, scene.root.join("more")).unwrap();
    scene.waits_for(&scene.other, 404);
    assert_eq!(scene.server.get(&scene.other.file_target()).status, 404);
    scene.assert_all(&scene.app, 200);
    scene
        .server
        .process
        .wait_for("now lead to other paths, so 2 paths");
}

/// Whoever has asked for a NAR, and found that the cache has it, has not sent it.
#[test]
fn only_who_has_sent_a_nar_can_read_it_after_it_is_denied() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    let (sender, asker) = (
        scene.site.token(&["--name", "sender"]),
        scene.site.token(&[]),
    );
    let path = MadePath::new("later");
    scene.server.publish(&sender, &path);
    let copy = MadePath::new("copy").containing(b"later");
    let (id, needs) = Push::new(&scene.server, &asker).open(&[&copy]);
    assert_eq!(needs, ["link"]);
    assert_eq!(
        scene
            .server
            .put(&asker, &path.file_target(), &path.file)
            .status,
        200
    );
    Push::new(&scene.server, &asker).pack(&id, &[&copy]);
    let target = format!("/upload{}", path.file_target());
    assert_eq!(scene.server.request("HEAD", &target, &asker).status, 200);
    fs::remove_file(&scene.root).unwrap();
    symlink(&path.store_path, &scene.root).unwrap();
    scene.waits_for(&path, 404);
    for (token, status) in [(&sender, 200), (&asker, 404)] {
        let response = scene.server.request("GET", &target, token);
        assert_eq!(response.status, status);
    }
}

/// What a rule denies does not shrink when something else is configured.
#[test]
fn references_of_a_deleted_path_stay_denied_after_a_reload() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    // As the collector does.
    scene.site.sql("delete from path where name = 'app'");
    let rule = format!("deny = [{{ roots = [{:?}] }}]", scene.root);
    for (options, count) in [
        (format!("priority = 7\n[policy]\n{rule}\n"), 1),
        (
            format!("[policy]\n{rule}\nallow = [{{ names = [\"*\"] }}]\n"),
            2,
        ),
    ] {
        scene.site.configure_empty(&options);
        scene.server.process.signal("HUP");
        eventually("the server has reloaded", || {
            scene.server.process.count("the configuration was reloaded") == count
        });
        scene.assert_all(&scene.lib, 404);
        scene.waits_for(&scene.other, 200);
        scene.assert_all(&scene.lib, 404);
    }
}

#[test]
fn a_root_that_cannot_be_followed_leaves_uploaded_paths_unknown() {
    let scene = Scene::new();
    scene.waits_for(&scene.lib, 404);
    fs::remove_file(&scene.root).unwrap();
    scene.waits_for(&scene.app, 503);
    for path in [&scene.app, &scene.other, &MadePath::new("absent")] {
        scene.assert_all(path, 503);
    }
    let list = scene.server.get("/uploads").text();
    assert!(!list.contains(scene.app.hash_part()), "{list}");
    let found = scene
        .server
        .get(&format!("/search?q={}", scene.app.hash_part()));
    assert_eq!(found.status, 503);
    let bulk = format!("/closure/{}", scene.app.hash_part());
    assert_eq!(scene.server.get(&bulk).status, 503);
    let token = scene.site.token(&["--name", "second"]);
    let open = Push::new(&scene.server, &token).send("POST", "open", open_line(&scene.app));
    assert_eq!(open.status, 503, "{}", open.text());
    // A client takes other refusals for final.
    let later = MadePath::new("later").referring_to(&scene.other.store_path);
    for (target, body) in [
        (later.file_target(), later.file.clone()),
        (later.target(), later.narinfo().into_bytes()),
        (scene.twin.target(), scene.twin.narinfo().into_bytes()),
    ] {
        let response = scene.server.put(&token, &target, body);
        assert_eq!(response.status, 503, "{target}: {}", response.text());
    }
}

/// The size of a closure would tell that a hidden path exists, and the size of its NAR.
#[test]
fn the_page_of_a_path_counts_no_hidden_paths() {
    let site = Site::new();
    site.configure_empty("[policy]\ndeny = [{ names = [\"secret\"] }]\n");
    let server = site.start();
    let token = site.token(&[]);
    let (secret, shown) = (MadePath::new("secret"), MadePath::new("shown"));
    let both = MadePath::new("both")
        .referring_to(&secret.store_path)
        .referring_to(&shown.store_path);
    let only = MadePath::new("only").referring_to(&secret.store_path);
    for path in [&secret, &shown, &both, &only] {
        server.publish(&token, path);
    }
    let page = |path: &MadePath| server.get(&format!("/path/{}", path.hash_part())).text();
    assert!(page(&both).contains("2 uploaded paths"), "{}", page(&both));
    assert!(page(&only).contains("1 uploaded path<"), "{}", page(&only));
}
