//! After `samovar use`, Nix substitutes from a cache and checks its signatures. `--undo` restores
//! every file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{samovar, sample, sample_store, secret_file, user};
use support_uploads::{MadePath, Running, Site};
use testkit::nix::{key_pair, nix};
use testkit::process::{fails, output};

/// User id of `nobody`.
const NOBODY: u32 = 65534;

/// A machine whose Nix settings name no cache.
struct Home {
    dir: tempfile::TempDir,
    /// User and group that run the commands. `None`: those of the tests.
    uid: Option<u32>,
    /// The directory of the settings that `samovar use` changes.
    settings: PathBuf,
}

impl Home {
    /// Returns a home of root and a home of another user. Leaves out a home that the tests may not
    /// create.
    fn both() -> Vec<Self> {
        let dir = tempfile::tempdir().unwrap();
        if fs::metadata(dir.path()).unwrap().uid() != 0 {
            return vec![Self::new(dir, None, "config/nix")];
        }
        let root = Self::new(dir, None, "no-conf");
        let mut probe = samovar();
        probe.arg("--version").uid(NOBODY).gid(NOBODY);
        match probe.stdout(Stdio::null()).status() {
            Ok(status) if status.success() => vec![root, Self::user().unwrap()],
            _ => vec![root],
        }
    }

    /// Returns a home of a user other than root. Returns `None` if the tests may not create it.
    fn user() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let is_root = fs::metadata(dir.path()).unwrap().uid() == 0;
        let home = Self::new(dir, is_root.then_some(NOBODY), "config/nix");
        let mut probe = home.prepare(samovar());
        let probe = probe.arg("--version").stdout(Stdio::null()).status();
        matches!(probe, Ok(status) if status.success()).then_some(home)
    }

    fn new(dir: tempfile::TempDir, uid: Option<u32>, settings: &str) -> Self {
        let settings = dir.path().join(settings);
        fs::create_dir_all(&settings).unwrap();
        let home = Self { dir, uid, settings };
        // Without this, Nix would request paths from cache.nixos.org. The last line has no line
        // feed.
        home.write("nix.conf", "substituters =\ntrusted-public-keys =");
        home.own(&home.settings.join(".."));
        home.own(&home.settings);
        home.own(home.dir.path());
        home
    }

    fn own(&self, path: &Path) {
        chown(path, self.uid, self.uid).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.settings.join(name);
        fs::write(&path, text).unwrap();
        self.own(&path);
        path
    }

    /// Runs a command as the user of this home, with its directories.
    fn prepare(&self, mut command: Command) -> Command {
        let of_nix = nix("nix", self.dir.path());
        for (name, value) in of_nix.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command.current_dir(self.dir.path());
        command
    }

    /// Returns the command `samovar use` with these arguments, without a terminal.
    fn setup(&self, arguments: &[&str]) -> Command {
        let mut command = self.prepare(samovar());
        command.arg("use").args(arguments).stdin(Stdio::null());
        command
    }

    /// Returns a command that substitutes a path into a new store, with the settings of this home
    /// alone.
    fn realise(&self, path: &str) -> Command {
        let store = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        self.own(&store);
        let mut command = self.prepare(nix("nix-store", self.dir.path()));
        command.arg("--store").arg(store);
        command.args(["--realise", path, "--option", "max-jobs", "0"]);
        command
    }

    /// Returns the mode and the text of each file in the settings directory.
    fn files(&self) -> BTreeMap<PathBuf, (u32, String)> {
        let entries = fs::read_dir(&self.settings).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let file = |path: PathBuf| {
            let mode = fs::symlink_metadata(&path).unwrap().mode();
            let text = fs::read_to_string(&path).unwrap_or_default();
            (path, (mode, text))
        };
        paths.map(file).collect()
    }
}

/// Starts a server of the sample store.
fn serve(more: &str) -> (Site, Running) {
    let site = Site::new();
    site.configure(&sample_store(), more);
    let server = site.start();
    (site, server)
}

#[test]
fn nix_substitutes_from_the_cache_until_the_setup_is_undone() {
    let (site, server) = serve("");
    let (url, path) = (server.url(), sample("self_reference"));
    for home in Home::both() {
        let before = home.files();
        let text = fails(&mut home.setup(&[&url]));
        assert!(text.contains("--key KEY, or --yes"), "{text}");
        let text = output(&mut home.setup(&["--print", &url]));
        assert!(text.contains("would write"), "{text}");
        assert!(text.contains(&site.public_key), "{text}");
        assert!(text.contains("fingerprint SHA256:"), "{text}");
        let (_, other) = key_pair(site.dir(), "cache-2");
        let text = fails(&mut home.setup(&["--key", &other, &url]));
        assert!(text.contains("which differs from the given one"), "{text}");
        assert_eq!(home.files(), before);
        fails(&mut home.realise(&path));

        let text = output(&mut home.setup(&["--yes", &url]));
        let line = format!("extra-trusted-public-keys = {}", site.public_key);
        assert!(text.contains(&line), "{text}");
        let after = home.files();
        assert_eq!(after.len(), before.len() + 1);
        let modes: Vec<u32> = after.values().map(|(mode, _)| mode & 0o777).collect();
        assert_eq!(modes, [0o644, 0o644]);
        output(&mut home.realise(&path));
        let text = output(&mut home.setup(&["--key", &site.public_key, &format!("{url}/")]));
        assert!(text.contains("nothing to change"), "{text}");
        assert_eq!(home.files(), after);

        let text = output(&mut home.setup(&["--undo", "--print", &url]));
        assert!(text.contains("would remove"), "{text}");
        assert_eq!(home.files(), after);
        output(&mut home.setup(&["--undo", &url]));
        assert_eq!(home.files(), before);
        let text = output(&mut home.setup(&["--undo", &url]));
        assert!(text.contains("nothing to undo"), "{text}");
        assert_eq!(home.files(), before);
    }
}

#[test]
fn signatures_are_checked_with_the_trusted_key() {
    let more = "[caches.main]\nprefix = \"/\"\n[caches.silent]\nsigning.sign = \"none\"\n";
    let (site, server) = serve(more);
    let (url, path) = (server.url(), sample("self_reference"));
    let silent = format!("{url}/silent");
    let (_, other) = key_pair(site.dir(), "cache-2");
    for home in Home::both() {
        let text = fails(&mut home.setup(&["--yes", &silent]));
        assert!(text.contains("shows no public key"), "{text}");
        output(&mut home.setup(&["--key", &other, &silent]));
        let text = fails(&mut home.realise(&path));
        assert!(text.contains("is not signed by any of the keys"), "{text}");
        // A second run replaces the wrong key.
        output(&mut home.setup(&["--key", &site.public_key, &silent]));
        let texts = format!("{:?}", home.files());
        assert!(
            texts.contains(&site.public_key) && !texts.contains(&other),
            "{texts}"
        );
        let text = fails(&mut home.realise(&path));
        assert!(text.contains("is not signed by any of the keys"), "{text}");
        output(&mut home.setup(&["--yes", &url]));
        output(&mut home.realise(&path));
    }
}

#[test]
fn a_private_cache_is_used_with_a_token() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    site.configure_empty(&format!("access.users-file = {users:?}\n"));
    let server = site.start();
    let path = MadePath::new("private");
    server.publish(&site.token(&[]), &path);
    let token = site.token(&["--rights", "read", "--name", "reader"]);
    let url = server.url();
    let token_file = secret_file(site.dir(), "token", &format!("{token}\n"));
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(site.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let token_file = token_file.to_str().unwrap();
    for home in Home::both() {
        let before = home.files();
        let text = fails(&mut home.setup(&["--yes", &url]));
        assert!(text.contains("--token-file"), "{text}");
        let with_login = url.replace("://", "://ada:secret@");
        let text = fails(&mut home.setup(&["--yes", &with_login]));
        assert!(
            text.contains("--token-file") && !text.contains("secret"),
            "{text}"
        );
        let wrong = home.write("wrong", "smv1_wrong\n");
        let arguments = ["--yes", "--token-file", wrong.to_str().unwrap(), &url];
        let text = fails(&mut home.setup(&arguments));
        assert!(text.contains("does not accept"), "{text}");
        fs::remove_file(wrong).unwrap();
        assert_eq!(home.files(), before);

        let arguments = ["--yes", "--token-file", token_file, &url];
        let text = output(&mut home.setup(&arguments));
        assert!(!text.contains("smv1_"), "{text}");
        let netrc = home.settings.join("netrc");
        let mode = fs::metadata(&netrc).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        output(&mut home.realise(&path.store_path));
        // A second run without the token keeps the login.
        let text = output(&mut home.setup(&["--key", &site.public_key, &url]));
        assert!(
            !text.contains("netrc-file") || home.settings.ends_with("nix"),
            "{text}"
        );
        output(&mut home.setup(&["--undo", &url]));
        assert_eq!(home.files(), before);

        // Entries for other hosts stay in the netrc file.
        home.write("netrc", "machine other.example.org login a password b");
        let set_mode = |mode| fs::set_permissions(&netrc, fs::Permissions::from_mode(mode));
        set_mode(0o600).unwrap();
        let conf = format!("substituters =\nnetrc-file = {}\n", netrc.display());
        home.write("nix.conf", &conf);
        let before = home.files();
        let mut setup = home.setup(&["--yes", &url]);
        output(setup.env("SAMOVAR_TOKEN", &token));
        output(&mut home.realise(&path.store_path));
        output(&mut home.setup(&["--undo", &url]));
        assert_eq!(home.files(), before);

        // A file that all users can read is closed before it gets the token, and stays closed.
        let mode = || fs::metadata(&netrc).unwrap().permissions().mode() & 0o7777;
        for (before, after) in [(0o644, 0o600), (0o640, 0o640)] {
            set_mode(before).unwrap();
            let mut setup = home.setup(&["--yes", &url]);
            let text = output(setup.env("SAMOVAR_TOKEN", &token));
            assert_eq!(mode(), after, "{text}");
            let says = text.contains("mode 0600 instead of 0644");
            assert_eq!(says, before != after, "{text}");
            output(&mut home.setup(&["--undo", &url]));
            assert_eq!(mode(), after);
        }

        // An earlier entry for the same host would be used instead of the new one.
        home.write("netrc", "machine 127.0.0.1 login a password b\n");
        let before = home.files();
        let mut setup = home.setup(&["--yes", &url]);
        let text = fails(setup.env("SAMOVAR_TOKEN", &token));
        assert!(text.contains("another login"), "{text}");
        assert_eq!(home.files(), before);
    }
}

#[test]
fn a_token_is_checked_by_the_cache_before_it_is_written() {
    let (site, server) = serve("");
    fs::set_permissions(site.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    // The URL of nix copy names the same cache.
    let url = format!("{}/upload", server.url());
    let token = site.token(&["--name", "reader", "--rights", "read"]);
    site.revoke("reader");
    for home in Home::both() {
        let before = home.files();
        let setup = |token: &str, more: &[&str]| {
            let mut setup = home.setup(&[more, &["--yes", &url]].concat());
            setup.env("SAMOVAR_TOKEN", token);
            setup
        };
        let text = fails(&mut setup(&token, &[]));
        let expected =
            "the cache refused the token: 401 Unauthorized with the token in SAMOVAR_TOKEN: ";
        assert!(
            text.contains(expected) && text.contains("was revoked"),
            "{text}"
        );
        let text = fails(&mut setup("notatoken", &[]));
        assert!(text.contains("is not a token"), "{text}");
        assert_eq!(home.files(), before);
        for (rights, expected) in [("read", "may not push"), ("push", "may push")] {
            let token = site.token(&["--rights", rights]);
            let text = output(&mut setup(&token, &["--print"]));
            assert!(
                text.starts_with("the cache accepts the token, which "),
                "{text}"
            );
            assert!(text.lines().next().unwrap().ends_with(expected), "{text}");
        }
        assert_eq!(home.files(), before);
    }
    let other = Site::new();
    let config = fs::read_to_string(other.config()).unwrap();
    let lines = config.lines().filter(|line| !line.starts_with("storage"));
    fs::write(other.config(), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let server = other.start();
    for home in Home::both() {
        let mut setup = home.setup(&["--print", "--yes", &server.url()]);
        let text = output(setup.env("SAMOVAR_TOKEN", "smv1_x"));
        assert!(text.contains("was not checked"), "{text}");
    }
}

#[test]
fn the_token_of_a_host_is_replaced_with_a_warning() {
    let site = Site::new();
    site.configure(&sample_store(), "[caches.a]\n[caches.b]\n");
    let server = site.start();
    let (a, b) = (format!("{}/a", server.url()), format!("{}/b", server.url()));
    let (first, second) = (site.token(&[]), site.token(&[]));
    for home in Home::both() {
        let before = home.files();
        let setup = |url: &str, token: &str| {
            let mut setup = home.setup(&["--yes", url]);
            let done = setup.env("SAMOVAR_TOKEN", token).output().unwrap();
            let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
            (done.status.code(), text)
        };
        let warning = "the new token replaces the earlier one for 127.0.0.1";
        for url in [&a, &b] {
            let (code, text) = setup(url, &first);
            assert!(code == Some(0) && !text.contains(warning), "{text}");
        }
        // Nix reads one login for the host, so the other cache cannot have another token.
        let (code, text) = setup(&b, &second);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("one token for all these caches"), "{text}");
        let (code, text) = setup(&a, &second);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(warning), "{text}");
        assert!(
            text.contains(&format!("Nix sends it to {b}, too")),
            "{text}"
        );
        let mut undo = home.setup(&["--undo", &a]);
        let done = undo.output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(
            text.contains(&format!("Nix sends the login to {b}, too")),
            "{text}"
        );
        output(&mut home.setup(&["--undo", &b]));
        assert_eq!(home.files(), before);
    }
}

#[test]
fn two_caches_are_set_up_and_undone_independently() {
    let (_site, server) = serve("");
    let (_other_site, other) = serve("");
    let (url, other) = (server.url(), other.url());
    for home in Home::both() {
        let before = home.files();
        output(&mut home.setup(&["--yes", &url]));
        output(&mut home.setup(&["--yes", &other]));
        output(&mut home.setup(&["--undo", &url]));
        output(&mut home.realise(&sample("empty")));
        output(&mut home.setup(&["--undo", &other]));
        assert_eq!(home.files(), before);
    }
}

#[test]
fn an_untrusted_user_of_a_daemon_is_told_whom_to_ask() {
    let (site, server) = serve("");
    let url = server.url();
    let Some(home) = Home::user() else {
        return;
    };
    let system = home.dir.path().join("no-conf");
    fs::create_dir(&system).unwrap();
    let setup = |conf: &str| {
        fs::write(system.join("nix.conf"), conf).unwrap();
        let mut setup = home.setup(&["--yes", &url]);
        let done = setup.env("NIX_REMOTE", "daemon").output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        (done.status.code(), text)
    };
    for conf in ["", "trusted-users = root @nosuchgroup\n"] {
        let (code, text) = setup(conf);
        assert_eq!(code, Some(1), "{text}");
        let command = format!("sudo samovar use --key {} {url}", site.public_key);
        assert!(text.contains(&command), "{text}");
        let lines = format!(
            "extra-trusted-substituters = {url}\n    extra-trusted-public-keys = {}\n",
            site.public_key
        );
        assert!(text.contains(&lines), "{text}");
    }
    let accepted = format!(
        "extra-trusted-substituters = http://other\nextra-trusted-substituters = {url}\n\
         extra-trusted-public-keys = {}\n",
        site.public_key
    );
    for conf in [&*accepted, "trusted-users = root *\n"] {
        let (code, text) = setup(conf);
        assert_eq!(code, Some(0), "{text}");
    }
}

#[test]
fn generated_settings_are_not_changed() {
    let (site, server) = serve("");
    for home in Home::both() {
        let nix_conf = home.settings.join("nix.conf");
        fs::remove_file(&nix_conf).unwrap();
        symlink(
            "/nix/store/00000000000000000000000000000000-nix.conf",
            &nix_conf,
        )
        .unwrap();
        let before = home.files();
        let mut setup = home.setup(&["--yes", &server.url()]);
        let done = setup.output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1), "{text}");
        for part in [
            "configuration.nix",
            &format!("extra-substituters = [ \"{}\" ];", server.url()),
            &format!("extra-trusted-public-keys = [ \"{}\" ];", site.public_key),
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(home.files(), before);
    }
}

#[test]
fn a_link_to_the_settings_stays_a_link() {
    let (_site, server) = serve("");
    for home in Home::both() {
        let (link, target) = (
            home.settings.join("nix.conf"),
            home.settings.join("dotfiles"),
        );
        fs::rename(&link, &target).unwrap();
        symlink("dotfiles", &link).unwrap();
        let before = home.files();
        output(&mut home.setup(&["--yes", &server.url()]));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&target).unwrap().contains("!include"));
        output(&mut home.setup(&["--undo", &server.url()]));
        assert_eq!(home.files(), before);
    }
}
