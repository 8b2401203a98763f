//! An unmodified gdb with `DEBUGINFOD_URLS=http://cache` finds the debug information and the
//! sources of programs whose outputs are in the Nix store, were uploaded or are kept of an
//! upstream, if it may read the cache and no policy hides the paths.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{bare, samovar, secret_file, user};
use support_uploads::{Running, Site};
use testkit::eventually;
use testkit::http1::Response;
use testkit::nix::{OwnStore, hash_part, key_pair, local, nix};
use testkit::process::output;
use testkit::random::SplitMix64;

const SOURCE: &str =
    "int twice(int x) {\n    return 2 * x;\n}\nint main(void) { return twice(0); }\n";

/// A program whose debug information was separated from it as nixpkgs does. All outputs are in a
/// Nix store.
struct Program {
    store: OwnStore,
    dir: tempfile::TempDir,
    build_id: String,
    source: String,
    out: String,
    debug: String,
}

impl Program {
    /// Compiles the program. Its source file is in the store.
    fn new() -> Self {
        Self::with(|source| source.to_owned(), |_, _| {})
    }

    /// Compiles the program. `recorded`: the directory of the source file that the compiler
    /// records, from its store path. `add`: adds files beside the debug information, given a
    /// function that returns the name of one with an extension.
    fn with(
        recorded: impl Fn(&str) -> String,
        add: impl Fn(&Self, &dyn Fn(&str) -> PathBuf),
    ) -> Self {
        let (store, dir) = (OwnStore::new(), tempfile::tempdir().unwrap());
        let sources = dir.path().join("twice+src");
        fs::create_dir(&sources).unwrap();
        fs::write(sources.join("twice.c"), SOURCE).unwrap();
        let source = store.add(&sources);
        let real = store.real(&source);
        let out = dir.path().join("twice");
        fs::create_dir_all(out.join("bin")).unwrap();
        let program = out.join("bin/twice");
        let map = format!("-ffile-prefix-map={}={}", real.display(), recorded(&source));
        let mut compile = Command::new("gcc");
        compile
            .args(["-g", "-Wl,--build-id", &map, "-o"])
            .arg(&program);
        output(compile.arg(real.join("twice.c")));
        let notes = output(Command::new("readelf").arg("-n").arg(&program));
        let build_id = notes.split("Build ID: ").nth(1).unwrap();
        let build_id = build_id.split_whitespace().next().unwrap().to_owned();
        let separate = dir.path().join("twice.debug");
        let mut objcopy = Command::new("objcopy");
        objcopy.arg("--only-keep-debug").arg(&program);
        output(objcopy.arg(&separate));
        output(Command::new("strip").arg(&program));
        let out = store.add(&out);
        let mut program = Self {
            store,
            dir,
            build_id,
            source,
            out,
            debug: String::new(),
        };
        let debug = program.dir.path().join("twice-debug");
        let file = |extension: &str| debug.join(program.member(extension));
        fs::create_dir_all(file("debug").parent().unwrap()).unwrap();
        fs::rename(&separate, file("debug")).unwrap();
        let binary = format!("{}/bin/twice", program.out);
        std::os::unix::fs::symlink(binary, file("executable")).unwrap();
        add(&program, &file);
        program.debug = program.store.add(&debug);
        program
    }

    /// Returns the name of a file in the output with debug information.
    fn member(&self, extension: &str) -> String {
        let (directory, rest) = self.build_id.split_at(2);
        format!("lib/debug/.build-id/{directory}/{rest}.{extension}")
    }

    /// Returns the bytes of the file with debug information.
    fn debug_info(&self) -> Vec<u8> {
        let file = self.store.real(&self.debug).join(self.member("debug"));
        fs::read(file).unwrap()
    }

    fn binary(&self) -> PathBuf {
        self.store.real(&self.out).join("bin/twice")
    }

    fn target(&self, artifact: &str) -> String {
        format!("/buildid/{}/{artifact}", self.build_id)
    }

    /// Pushes paths with plain `nix copy`.
    fn push(&self, url: &str, token: &str, paths: &[&str]) {
        let text = format!("machine 127.0.0.1 login nobody password {token}\n");
        let netrc = secret_file(self.dir.path(), "netrc", &text);
        let mut copy = nix("nix", self.dir.path());
        copy.args(["copy", "--from", &local(self.store.root()), "--to", url]);
        copy.args(["--option", "substituters", ""]);
        copy.args(["--option", "netrc-file"]).arg(netrc);
        output(copy.args(paths));
    }

    /// Runs gdb on the program, which has no debug information itself. Returns what gdb prints
    /// about the line and the source of a function.
    fn debugged(&self, url: &str) -> String {
        let home = tempfile::tempdir().unwrap();
        let mut gdb = bare("gdb");
        gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled on"]);
        gdb.args(["-ex", "info line twice", "-ex", "list twice"]);
        gdb.arg(self.binary()).stdin(Stdio::null());
        gdb.env("HOME", home.path()).env("DEBUGINFOD_URLS", url);
        gdb.env("DEBUGINFOD_CACHE_PATH", home.path().join("cache"));
        let printed = gdb.output().unwrap();
        String::from_utf8_lossy(&printed.stdout).into_owned()
    }

    /// Asserts that gdb finds the line and the source of a function.
    #[track_caller]
    fn assert_debugged(&self, url: &str) {
        let printed = self.debugged(url);
        let line = format!("Line 1 of \"{}/twice.c\" starts at", self.source);
        assert!(printed.contains(&line), "{printed}");
        assert!(printed.contains("return 2 * x;"), "{printed}");
    }
}

#[track_caller]
fn assert_body(response: &Response, expected: &[u8]) {
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.body == expected, "{} bytes", response.body.len());
    let size = response.header("X-DEBUGINFOD-SIZE");
    assert_eq!(size, Some(&*expected.len().to_string()));
}

/// Starts a server of a Nix store without uploads. `more`: more options.
fn serve(store: &OwnStore, dir: &Path, more: &str) -> Running {
    let uri = local(store.root());
    let text = format!("store = {uri:?}\nlisten = \"127.0.0.1:0\"\nadmin.listen = []\n{more}");
    let config = secret_file(dir, "samovar.toml", &text);
    Running::of(samovar().args(["serve", "--config"]).arg(config))
}

#[test]
fn gdb_finds_what_is_in_the_nix_store() {
    let program = Program::new();
    let server = serve(&program.store, program.dir.path(), "");
    program.assert_debugged(&server.url());
    let response = server.get(&program.target("debuginfo"));
    assert_body(&response, &program.debug_info());
    let archive = program.debug.strip_prefix("/nix/store/");
    assert_eq!(response.header("X-DEBUGINFOD-ARCHIVE"), archive);
    let member = program.member("debug");
    assert_eq!(response.header("X-DEBUGINFOD-FILE"), Some(&*member));
    let executable = server.get(&program.target("executable"));
    assert_body(&executable, &fs::read(program.binary()).unwrap());
    let head = server.request("HEAD", &program.target("debuginfo"), "");
    assert_eq!((head.status, head.body.len()), (200, 0));
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&program.debug)));
    let url = narinfo.text();
    let url = url.lines().find_map(|line| line.strip_prefix("URL: "));
    for suffix in ["", ".debug"] {
        let target = format!("/debuginfo/{}{suffix}", program.build_id);
        let expected = json!({"archive": format!("../{}", url.unwrap()), "member": member});
        assert_eq!(server.get(&target).json(), expected);
    }
}

#[test]
fn gdb_finds_what_was_uploaded_in_each_compression() {
    let program = Program::new();
    let paths = [&*program.debug, &*program.out, &*program.source];
    for compression in ["none", "xz", "zstd"] {
        let (_site, server, token) = Site::serving();
        let unknown = server.get(&program.target("debuginfo"));
        assert_eq!(unknown.status, 404);
        let to = format!("{}/upload?compression={compression}", server.url());
        program.push(&to, &token, &paths);
        program.assert_debugged(&server.url());
        let found = server.get(&program.target("debuginfo"));
        assert_body(&found, &program.debug_info());
        let executable = server.get(&program.target("executable"));
        assert_body(&executable, &fs::read(program.binary()).unwrap());
        let place: Value = server
            .get(&format!("/debuginfo/{}", program.build_id))
            .json();
        assert_eq!(place["member"], program.member("debug"));
        let archive = place["archive"].as_str().unwrap().strip_prefix("../");
        let narinfo = server.get(&format!("/{}.narinfo", hash_part(&program.debug)));
        let url = format!("URL: {}\n", archive.unwrap());
        assert!(narinfo.text().contains(&url), "{}", narinfo.text());
    }
}

#[test]
fn gdb_finds_what_is_kept_of_an_upstream() {
    let program = Program::new();
    let (secret, public) = key_pair(program.dir.path(), "up-1");
    let options = format!("secret-key-files = [{secret:?}]\n");
    let upstream = serve(&program.store, program.dir.path(), &options);
    let (site, url) = (Site::new(), upstream.url());
    let configure = |key: &str| {
        site.configure_empty(&format!(
            "[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n\
             [caches.main]\nprefix = \"/\"\n[caches.no-debug]\n\
             policy.deny = [{{ names = [\"*-debug\"] }}]\n[caches.own]\nupstreams = []\n"
        ));
    };
    configure(&public);
    let server = site.start();
    let target = program.target("debuginfo");
    assert_eq!(server.get(&target).status, 404);
    let client = tempfile::tempdir().unwrap();
    let mut copy = nix("nix", client.path());
    copy.args(["copy", "--no-check-sigs", "--from", &server.url()]);
    copy.args(["--to", &local(&client.path().join("store"))]);
    copy.args(["--option", "substituters", ""]);
    output(copy.args([&program.debug, &program.out, &program.source]));
    eventually("the paths are kept", || {
        site.sql("select count(*) from path").trim() == "3"
    });
    drop(upstream);
    program.assert_debugged(&server.url());
    assert_body(&server.get(&target), &program.debug_info());
    let executable = server.get(&program.target("executable"));
    assert_body(&executable, &fs::read(program.binary()).unwrap());
    let place: Value = server
        .get(&format!("/debuginfo/{}", program.build_id))
        .json();
    let archive = place["archive"]
        .as_str()
        .unwrap()
        .strip_prefix("..")
        .unwrap();
    assert_eq!(server.get(archive).status, 200, "{archive}");
    for cache in ["no-debug", "own"] {
        assert_eq!(
            server.get(&format!("/{cache}{target}")).status,
            404,
            "{cache}"
        );
    }
}

/// `samovar push` uploads large NARs as several zstd frames.
#[test]
fn a_file_is_sent_from_the_middle_of_a_large_nar() {
    let content = |seed: u64| {
        let bytes = SplitMix64::new(seed).bytes(6 << 20);
        [b"start".to_vec(), bytes, b"end".to_vec()].concat()
    };
    let program = Program::with(
        |source| source.to_owned(),
        |_, file| {
            fs::write(file("a"), content(1)).unwrap();
            fs::write(file("z"), content(2)).unwrap();
            fs::write(file("debug"), content(3)).unwrap();
        },
    );
    let (site, server, token) = Site::serving();
    let config = secret_file(
        site.dir(),
        "netrc",
        &format!("machine 127.0.0.1 password {token}\n"),
    );
    let mut push = samovar();
    push.args([
        "push",
        "--store",
        &local(program.store.root()),
        "--netrc-file",
    ]);
    push.arg(config).arg(server.url());
    output(push.arg(&program.debug));
    assert!(
        !site
            .sql("select frames from nar where frames is not null")
            .is_empty()
    );
    let found = server.get(&program.target("debuginfo"));
    assert_body(&found, &content(3));
}

#[test]
fn clients_that_may_not_read_the_cache_get_nothing() {
    let program = Program::new();
    let users = secret_file(program.dir.path(), "users", &user("ada", "secret"));
    let access = format!("access.users-file = {users:?}\n");
    let server = serve(&program.store, program.dir.path(), &access);
    let host = server.address;
    program.assert_debugged(&format!("http://ada:secret@{host}"));
    for url in [format!("http://ada:wrong@{host}"), server.url()] {
        let printed = program.debugged(&url);
        assert!(!printed.contains("twice.c"), "{printed}");
    }
    for target in [
        program.target("debuginfo"),
        program.target("executable"),
        program.target(&format!("source{}/twice.c", program.source)),
        format!("/debuginfo/{}", program.build_id),
    ] {
        assert_eq!(server.get(&target).status, 401, "{target}");
    }
}

#[test]
fn hidden_paths_are_as_good_as_absent() {
    let program = Program::new();
    let site = Site::new();
    let caches = "[caches.open]\n\
         [caches.no-debug]\npolicy.deny = [{ names = [\"*-debug\"] }]\n\
         [caches.no-source]\npolicy.deny = [{ names = [\"twice+src\"] }]\n\
         [caches.no-program]\npolicy.deny = [{ names = [\"twice\"] }]\n";
    site.configure(&local(program.store.root()), caches);
    let (stored, server) = (&site, site.start());
    let (debug_info, executable) = (program.target("debuginfo"), program.target("executable"));
    let source = program.target(&format!("source{}/twice.c", program.source));
    let place = format!("/debuginfo/{}", program.build_id);
    let absent = "/open/buildid/00000000/debuginfo";
    let absent = server.get(absent).head_without_date().join("\n");
    let check = |server: &Running, cache: &str, hidden: &[&str]| {
        for target in [&debug_info, &executable, &source, &place] {
            let response = server.get(&format!("/{cache}{target}"));
            if hidden.contains(&&**target) {
                assert_eq!(
                    response.head_without_date().join("\n"),
                    absent,
                    "{cache}{target}"
                );
                assert_eq!(response.text(), "File not found.\n");
            } else {
                assert_eq!(response.status, 200, "{cache}{target}");
            }
        }
    };
    let check_all = |server: &Running| {
        check(server, "open", &[]);
        check(server, "no-debug", &[&debug_info, &executable, &place]);
        check(server, "no-source", &[&source]);
        check(server, "no-program", &[&executable]);
    };
    check_all(&server);
    drop(server);
    // The same paths, uploaded.
    site.configure_empty(caches);
    let server = site.start();
    let paths = [&*program.debug, &*program.out, &*program.source];
    for cache in ["open", "no-debug", "no-source", "no-program"] {
        let token = stored.token(&["--cache", cache]);
        program.push(&format!("{}/{cache}/upload", server.url()), &token, &paths);
    }
    check_all(&server);
}

#[test]
fn paths_are_found_once_they_are_added_and_until_they_are_deleted() {
    let program = Program::new();
    let server = serve(&program.store, program.dir.path(), "");
    let target = program.target("debuginfo");
    assert_eq!(server.get(&target).status, 200);
    // Other outputs with a file of this build ID.
    let add = |name: &str| {
        let output = program.dir.path().join(name);
        fs::create_dir_all(output.join("lib/debug/.build-id/ab")).unwrap();
        fs::write(output.join("lib/debug/.build-id/ab/cdef.debug"), name).unwrap();
        program.store.add(&output)
    };
    let found = || server.get("/buildid/abcdef/debuginfo");
    assert_eq!(found().status, 404);
    let one = add("one-debug");
    assert_body(&found(), b"one-debug");
    program
        .store
        .run("nix-store", &["--delete", &program.debug]);
    assert_eq!(server.get(&target).status, 404);
    let two = add("two-debug");
    assert_body(&found(), b"two-debug");
    program.store.run("nix-store", &["--delete", &two]);
    assert_body(&found(), b"one-debug");
    // The newest path that the server knew is gone.
    add("three-debug");
    assert_body(&found(), b"three-debug");
    program.store.run("nix-store", &["--delete", &one]);
    add("four");
    assert_body(&found(), b"three-debug");
}

#[test]
fn sources_that_were_unpacked_for_a_build_are_found() {
    let recorded = |_: &str| "/build/twice-1.0".to_owned();
    let link = |program: &Program, file: &dyn Fn(&str) -> PathBuf| {
        std::os::unix::fs::symlink(&program.source, file("source")).unwrap();
    };
    let program = Program::with(recorded, link);
    let server = serve(&program.store, program.dir.path(), "");
    let source = program.target("source/build/twice-1.0/x/..//twice.c");
    assert_body(&server.get(&source), SOURCE.as_bytes());
    let printed = program.debugged(&server.url());
    assert!(printed.contains("return 2 * x;"), "{printed}");
    for absent in [
        "source/build/twice-1.0/other.c",
        "source/build/twice.c",
        "source/tmp/twice-1.0/twice.c",
        "source/build/twice-1.0",
    ] {
        assert_eq!(server.get(&program.target(absent)).status, 404, "{absent}");
    }
    // A file that the build has changed.
    let program = Program::with(recorded, |program, file| {
        link(program, file);
        let changed = file("sourceoverlay");
        fs::create_dir_all(changed.join("twice-1.0")).unwrap();
        fs::write(changed.join("twice-1.0/twice.c"), "changed").unwrap();
    });
    let server = serve(&program.store, program.dir.path(), "");
    assert_body(
        &server.get(&program.target("source/build/twice-1.0/twice.c")),
        b"changed",
    );
}

#[test]
fn urls_without_a_file_are_404() {
    let program = Program::new();
    let server = serve(&program.store, program.dir.path(), "");
    let (source, id) = (&program.source, &program.build_id);
    for target in [
        "/buildid/".to_owned(),
        format!("/buildid/{id}"),
        format!("/buildid/{id}/section/.gdb_index"),
        format!("/buildid/{}/debuginfo", id.to_uppercase()),
        format!("/buildid/{}/debuginfo", &id[..38]),
        format!("/buildid/{id}/source/etc/passwd"),
        format!("/buildid/{id}/source{source}"),
        format!("/buildid/{id}/source{source}/../../../etc/passwd"),
        format!("/buildid/{id}/source{source}/absent.c"),
        format!("/buildid/{id}/source/nix/store"),
        format!("/buildid/{id}/source%2Fnix"),
        "/debuginfo/".to_owned(),
        "/debuginfo/00000000".to_owned(),
        format!("/debuginfo/{id}/x"),
    ] {
        let response = server.get(&target);
        assert_eq!(response.status, 404, "{target}: {}", response.text());
    }
    let put = server.request("PUT", &program.target("debuginfo"), "");
    assert_eq!(put.status, 405);
    let range = {
        let mut connection = testkit::http1::Connection::connect(server.address);
        connection.request("GET", &program.target("debuginfo"), &["Range: bytes=1-3"])
    };
    assert_eq!((range.status, &*range.body), (206, &b"ELF"[..]));
}
