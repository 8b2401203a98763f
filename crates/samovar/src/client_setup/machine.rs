//! Finds the Nix settings of this client, and whether its Nix daemon accepts them.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use samovar_nix::PublicKey;
use samovar_store::Conf;

use crate::user_dirs;

/// Directories of generated files. If `nix.conf` is a link into one of them, NixOS or home-manager
/// generates it, and it is read-only.
const GENERATED: [&str; 2] = ["/nix/store/", "/etc/static/"];

/// The machine and the user for which the command sets up Nix.
#[derive(Debug)]
pub(super) struct Machine {
    uid: u32,
    /// Directory of the machine-wide Nix settings, usually `/etc/nix`.
    system_dir: PathBuf,
    /// Directory of the settings to change: the machine-wide one for root, else the one of the
    /// user.
    dir: PathBuf,
}

impl Machine {
    /// Reads the user, the directories and the settings of this machine.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be read, or the user has no home directory.
    pub(super) fn probe() -> anyhow::Result<Self> {
        let uid = fs::metadata("/proc/self")
            .context("cannot read /proc/self")?
            .uid();
        let system_dir =
            user_dirs::variable("NIX_CONF_DIR").unwrap_or_else(|| PathBuf::from("/etc/nix"));
        let dir = match uid {
            0 => system_dir.clone(),
            _ => user_dirs::config()
                .context("HOME is not set, so there is no place for settings of this user")?
                .join("nix"),
        };
        Ok(Self {
            uid,
            system_dir,
            dir,
        })
    }

    /// Returns the directory of the Nix settings to change.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the `nix.conf` to change.
    pub(super) fn nix_conf(&self) -> PathBuf {
        self.dir.join("nix.conf")
    }

    /// Returns the netrc file into which the login is written: `in_use`, the file that Nix reads
    /// now, if this user may write it, else `netrc` in the directory of the user's settings.
    pub(super) fn netrc(&self, in_use: &Path) -> PathBuf {
        let can_write = |path: &Path| File::options().append(true).open(path).is_ok();
        match self.uid == 0 || can_write(in_use) {
            true => in_use.to_owned(),
            false => self.dir.join("netrc"),
        }
    }

    /// Returns whether NixOS or home-manager generates `nix.conf`. Then a change of the file is
    /// impossible, or is lost at the next rebuild.
    pub(super) fn is_generated(&self) -> bool {
        let mut path = self.nix_conf();
        for _ in 0..16 {
            match fs::read_link(&path) {
                Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
                Err(_) => return false,
            }
            let text = path.to_string_lossy();
            if GENERATED.iter().any(|start| text.starts_with(start)) {
                return true;
            }
        }
        false
    }

    /// Returns whether the command runs as root and so changes the machine-wide settings.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns the user's name if a Nix daemon serves this machine and ignores this user's settings
    /// for the cache. Returns `None` if the settings take effect.
    pub(super) fn untrusted_user(&self, url: &str, keys: &[PublicKey]) -> Option<String> {
        if self.uid == 0 || !uses_daemon() {
            return None;
        }
        let conf = Conf::read(&self.system_dir.join("nix.conf"));
        let words = |names: &[&str]| -> Vec<String> {
            let texts = names.iter().filter_map(|name| conf.text(name));
            let words = texts.flat_map(str::split_ascii_whitespace);
            words.map(str::to_owned).collect()
        };
        let name = account("/etc/passwd", self.uid).unwrap_or_else(|| self.uid.to_string());
        let groups: Vec<String> = group_ids()
            .into_iter()
            .filter_map(|id| account("/etc/group", id))
            .collect();
        let is_me = |word: &String| match word.strip_prefix('@') {
            Some(group) => groups.iter().any(|name| name == group),
            None => word == "*" || *word == name,
        };
        let trusted = words(&["trusted-users", "extra-trusted-users"]);
        if trusted.iter().any(is_me) {
            return None;
        }
        let known_keys = words(&["trusted-public-keys", "extra-trusted-public-keys"]);
        let known_urls = words(&[
            "substituters",
            "extra-substituters",
            "trusted-substituters",
            "extra-trusted-substituters",
        ]);
        let is_known = known_urls
            .iter()
            .any(|known| known.trim_end_matches('/') == url)
            && keys.iter().all(|key| known_keys.contains(&key.to_string()));
        (!is_known).then_some(name)
    }
}

/// Returns whether this user's Nix commands access the store through a daemon.
fn uses_daemon() -> bool {
    let remote = env::var("NIX_REMOTE").unwrap_or_default();
    if !matches!(&*remote, "" | "auto") {
        return remote == "daemon" || remote.starts_with("unix://");
    }
    let state =
        user_dirs::variable("NIX_STATE_DIR").unwrap_or_else(|| PathBuf::from("/nix/var/nix"));
    let socket = user_dirs::variable("NIX_DAEMON_SOCKET_PATH");
    let socket = socket.unwrap_or_else(|| state.join("daemon-socket/socket"));
    let is_own = tempfile::tempfile_in(state.join("db")).is_ok();
    !is_own && socket.exists()
}

/// Returns the ids of the groups that this process belongs to.
fn group_ids() -> Vec<u32> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let groups = line.strip_prefix("Groups:");
        groups.or_else(|| line.strip_prefix("Gid:"))
    });
    let words = lines.flat_map(str::split_ascii_whitespace);
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Returns the name of the user or group with this id. `file`: `/etc/passwd` or `/etc/group`.
fn account(file: &str, id: u32) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    })
}
