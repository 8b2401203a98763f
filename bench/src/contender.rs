//! The cache servers in the comparison: their commands, and their running instances.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;
use testkit::free_port;

use crate::figures::{Gap, Part, Values};
use crate::http::Client;
use crate::process::Server;

/// The store and the signing key with which a server is started for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// The store of the run, without a key.
    Plain,
    /// The store of the run, with a signing key.
    Signing,
    /// The big store, without a key.
    Big,
}

/// Paths that replace the placeholders in commands.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) store: PathBuf,
    pub(crate) big_store: Option<PathBuf>,
    pub(crate) key: PathBuf,
    pub(crate) scratch: PathBuf,
}

/// A server in the comparison, with its commands and running instances.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) part: Part,
    /// Command that starts the server without a signing key; `None` if there is none. The next
    /// field is the command with the placeholder `{key}`.
    plain: Option<String>,
    signing: Option<String>,
    places: Places,
    standing: [OnceCell<Running>; 3],
}

/// A running server, and the scratch folder that it uses.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    /// Memory that the server used before the first measurement.
    pub(crate) idle_memory: Values,
    _scratch: TempDir,
}

impl Contender {
    /// Groups commands by server name. The first server is ours.
    pub(crate) fn of_commands(commands: &[(String, String)], places: &Places) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (name, command) in commands {
            let known = all.iter().position(|contender| contender.name == *name);
            let at = known.unwrap_or_else(|| {
                let part = if all.is_empty() {
                    Part::Ours
                } else {
                    Part::Peer
                };
                all.push(Self::new(name, part, places));
                all.len() - 1
            });
            if let Some(contender) = all.get_mut(at) {
                if command.contains("{key}") {
                    contender.signing = Some(command.clone());
                } else {
                    contender.plain = Some(command.clone());
                }
            }
        }
        all
    }

    /// Returns the contender for an nginx reference that `command` starts.
    pub(crate) fn anchor(name: &str, command: String, places: &Places) -> Self {
        Self {
            plain: Some(command),
            ..Self::new(name, Part::Anchor, places)
        }
    }

    fn new(name: &str, part: Part, places: &Places) -> Self {
        Self {
            name: name.into(),
            part,
            plain: None,
            signing: None,
            places: places.clone(),
            standing: [const { OnceCell::new() }; 3],
        }
    }

    /// Returns the command and the store for a setting; fails with the reason if the server has
    /// none.
    fn command(&self, setting: Setting) -> Result<(&str, &Path), Gap> {
        let no = |why: &str| Gap::NotAsked(why.into());
        let any = || self.plain.as_deref().or(self.signing.as_deref());
        match setting {
            Setting::Plain => any().zip(Some(self.places.store.as_path())),
            Setting::Signing if self.part == Part::Anchor => {
                return Err(no("does not sign: it serves prepared files"));
            }
            Setting::Signing => self
                .signing
                .as_deref()
                .zip(Some(self.places.store.as_path())),
            Setting::Big if self.part == Part::Anchor => {
                return Err(no("has prepared files of the small store only"));
            }
            Setting::Big => {
                let store = self.places.big_store.as_deref();
                any().zip(Some(store.ok_or_else(|| no("no --big-store"))?))
            }
        }
        .ok_or_else(|| no("no command with {key}"))
    }

    /// Starts an instance, which is terminated on drop.
    pub(crate) fn start(&self, setting: Setting) -> Result<Running, Gap> {
        let (command, store) = self.command(setting)?;
        self.run(command, store)
            .map_err(|error| Gap::Failed(format!("does not start: {error:#}")))
    }

    fn run(&self, command: &str, store: &Path) -> Result<Running> {
        let scratch = tempfile::Builder::new()
            .prefix(&format!("{}-", self.name))
            .tempdir_in(&self.places.scratch)?;
        let port = free_port();
        let command = command
            .replace("{port}", &port.to_string())
            .replace("{store}", &store.display().to_string())
            .replace("{key}", &self.places.key.display().to_string())
            .replace("{scratch}", &scratch.path().display().to_string());
        let server = Server::start_command(&self.name, &command, port, "/nix-cache-info")?;
        Ok(Running {
            server,
            idle_memory: Values::new(),
            _scratch: scratch,
        })
    }

    /// Returns the long-running instance, started on first use.
    pub(crate) fn standing(&self, setting: Setting) -> Result<&Running, Gap> {
        let place = &self.standing[setting as usize];
        if let Some(running) = place.get() {
            return Ok(running);
        }
        let mut running = self.start(setting)?;
        running.server.rest();
        running.idle_memory = running.server.memory();
        Ok(place.get_or_init(|| running))
    }

    /// Returns this server's URL of the NAR of `path`.
    pub(crate) fn nar_url(&self, path: &str) -> Result<String> {
        let running = self.standing(Setting::Plain).map_err(gap_error)?;
        crate::check::nar_url(&mut Client::new(running.server.address), path)
            .with_context(|| self.name.clone())
    }
}

/// Converts a gap into an error. Used in rows in which every server must respond.
pub(crate) fn gap_error(gap: Gap) -> anyhow::Error {
    match gap {
        Gap::NotAsked(why) | Gap::Failed(why) => anyhow::Error::msg(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_with_and_without_key_are_grouped_by_name() {
        let places = Places {
            store: "/s".into(),
            big_store: None,
            key: "/k".into(),
            scratch: "/tmp".into(),
        };
        let commands = [("a", "run"), ("b", "other"), ("a", "run {key}")]
            .map(|(name, command)| (name.to_owned(), command.to_owned()));
        let all = Contender::of_commands(&commands, &places);
        let [a, b] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert_eq!((a.part, b.part), (Part::Ours, Part::Peer));
        assert_eq!(a.command(Setting::Plain).unwrap().0, "run");
        assert_eq!(a.command(Setting::Signing).unwrap().0, "run {key}");
        assert!(matches!(b.command(Setting::Signing), Err(Gap::NotAsked(_))));
        assert!(matches!(a.command(Setting::Big), Err(Gap::NotAsked(_))));
    }
}
