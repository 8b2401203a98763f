//! `samovar use`: sets up this client for a cache, and undoes that.
//!
//! | file, in `/etc/nix` for root, else in `~/.config/nix` | change |
//! | --- | --- |
//! | `samovar-<URL>.conf` | new: substituter, public keys, `netrc-file` if necessary |
//! | `nix.conf` | one more line, which includes the file |
//! | the netrc file that Nix uses | one more line with the token, if one is given |
//!
//! The files are the only record. Added lines are marked, so `--undo` removes exactly these.

mod edit;
mod files;
mod keys;
mod machine;

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use samovar_client::push::may_push;
use samovar_nix::PublicKey;

use crate::arguments::{id_token_file, oidc, oidc_options, switch};
use crate::cache::{Cache, INFO_PATH};
use crate::credential::{TOKEN_VARIABLE, token_in};
use crate::credentials::{OidcOptions, check_encrypted, warn_if_open};
use crate::http::{Http, Patience};
use crate::netrc::{login, netrc_of_nix};
use crate::notice::notice;
use crate::outcome::{Failed, Outcome, reason};
use crate::private::Private;
use crate::remote::{Remote, basic_of};
use files::{Change, PUBLIC, SECRET};
use machine::Machine;

/// Maximum length of a token, in bytes.
const TOKEN_LEN_MAX: u64 = 4096;

/// Start of the first line of a cache's settings file. The URL of the cache follows.
const FIRST_LINE: &str = "# Removed by: samovar use --undo ";

/// User name that is written beside the token into the netrc file. Servers ignore it.
const LOGIN: &str = "samovar";

/// Defines the command `samovar use`.
pub(crate) fn command() -> Command {
    Command::new("use")
        .about("Sets up this client for a cache: substituter, public key and login")
        .after_help(
            "Changes the settings of the machine in /etc/nix if run as root, else those of the \
             user in ~/.config/nix, and prints what it changed. The cache states its public key \
             in cache-info.json. A token is read from --token-file or SAMOVAR_TOKEN, checked by \
             the cache, and written into the netrc file of Nix, which has one login for all \
             caches of a host. With --oidc, the token is that of a CI job, and expires within \
             an hour. Exit code 0: the client uses the cache; 1: you must do a printed step by \
             hand, or the cache refused the request; 2: the command line is invalid; 3: the \
             cache is unavailable.",
        )
        .arg(
            Arg::new("key")
                .long("key")
                .value_name("KEY")
                .action(ArgAction::Append)
                .value_parser(key)
                .help("Trust this public key, NAME:BASE64, without asking"),
        )
        .arg(switch("yes").help("Trust the keys that the cache shows, without asking"))
        .arg(
            Arg::new("token-file")
                .long("token-file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("File with a token in its first line; - is standard input"),
        )
        .arg(oidc().conflicts_with("token-file"))
        .arg(id_token_file())
        .arg(switch("print").help("Print what would be changed, and change nothing"))
        .arg(
            switch("undo")
                .conflicts_with_all(["key", "yes", "token-file", "oidc"])
                .help("Remove what this command has added for the cache"),
        )
        .arg(
            Arg::new("url")
                .value_name("URL")
                .required(true)
                .help("URL of a binary cache, without a login; a final /upload is left out"),
        )
}

fn key(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text)
        .map_err(|_error| format!("{text:?} is not a public key; expected NAME:BASE64"))
}

/// Runs `samovar use`.
///
/// # Errors
///
/// The cache cannot be reached or shows no key, the key is not confirmed, or a file cannot be
/// changed.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let url: &String = matches.get_one("url").context("a URL is missing")?;
    let remote = remote(url).map_err(|error| Failed::Usage.because(error))?;
    let machine = Machine::probe()?;
    let is_plan = matches.get_flag("print");
    if matches.get_flag("undo") {
        let changes = undo(&machine, remote.url())?;
        carry_out(&changes, is_plan, out)?;
        if changes.is_empty() {
            writeln!(out, "nothing to undo: {} was not set up here", remote.url())?;
        }
        return Ok(Outcome::Complete);
    }
    let setup = Setup::new(matches, machine, remote, out)?;
    if setup.machine.is_generated() {
        setup.print_nix_code(out)?;
        return Ok(Outcome::Incomplete);
    }
    let changes = setup.plan()?;
    carry_out(&changes, is_plan, out)?;
    if changes.is_empty() {
        writeln!(out, "nothing to change: {} is set up here", setup.url)?;
    }
    setup.print_notes(!changes.is_empty(), out)
}

/// Parses the URL of the cache.
fn remote(url: &str) -> anyhow::Result<Remote> {
    let remote = Remote::of_cache(url)?;
    ensure!(
        remote.authorization().is_none(),
        "the URL has a login, which other users can see: give the token with --token-file"
    );
    let is_space = |char: char| char.is_whitespace() || char.is_control();
    ensure!(
        !remote.url().contains(is_space),
        "the URL has white space, which nix.conf cannot contain"
    );
    Ok(remote)
}

/// Carries out the changes and prints them. With `is_plan`, only prints them.
fn carry_out(changes: &[Change], is_plan: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    for change in changes {
        if !is_plan {
            change.make()?;
        }
        change.print(!is_plan, out)?;
    }
    Ok(())
}

/// The settings to make on this client for one cache.
struct Setup {
    machine: Machine,
    url: String,
    host: String,
    keys: Vec<PublicKey>,
    token: Option<String>,
    /// The netrc file that Nix reads now.
    netrc_in_use: PathBuf,
}

impl Setup {
    /// Collects the settings: requests the cache's public keys, and asks the user to confirm them.
    fn new(
        matches: &ArgMatches,
        machine: Machine,
        mut remote: Remote,
        out: &mut dyn Write,
    ) -> anyhow::Result<Self> {
        let file = matches.get_one::<PathBuf>("token-file");
        let token = match oidc_options(matches) {
            Some(options) => Some(Token::of_job(&options, &remote, out)?),
            None => {
                let token = token(file.map(PathBuf::as_path));
                token.map_err(|error| Failed::Usage.because(error))?
            }
        };
        let netrc_in_use = netrc_of_nix();
        let host = remote.host().to_owned();
        if let Some(Token { text, source }) = &token {
            let authorization = basic_of(LOGIN.as_bytes(), text.as_bytes());
            remote.authorize(authorization, source.clone());
        } else {
            let text = files::read(&netrc_in_use).ok().flatten();
            if let Some(login) = login(&text.unwrap_or_default(), &host) {
                let source = format!("the password for {host:?} in {netrc_in_use:?}");
                remote.authorize(login.authorization(), source);
            }
        }
        check_encrypted(&remote).map_err(|error| Failed::Usage.because(error))?;
        let url = remote.url().to_owned();
        let http = Http::new(remote, Patience::SETUP)?;
        let info = http.get(INFO_PATH)?;
        let cache = Cache::with_info(http, info).map_err(|error| match error.downcast_ref() {
            Some(Private::NoLogin(_)) => error.context(
                "the cache needs a login: give a token with --token-file or in SAMOVAR_TOKEN, or \
                 write the login of a user into the netrc file of Nix first",
            ),
            Some(Private::WrongLogin(_)) => error.context("the cache does not accept the login"),
            None => error,
        })?;
        if token.is_some() {
            writeln!(out, "{}", checked_token(cache.http())?)?;
        }
        let given = matches.get_many("key").into_iter().flatten().cloned();
        let is_confirmed = matches.get_flag("yes") || matches.get_flag("print");
        let keys = keys::trusted(cache.http(), given.collect(), is_confirmed, out)?;
        Ok(Self {
            machine,
            url,
            host,
            keys,
            token: token.map(|token| token.text),
            netrc_in_use,
        })
    }

    /// Plans the changes of files, in the order in which they must be made.
    fn plan(&self) -> anyhow::Result<Vec<Change>> {
        let netrc = self.machine.netrc(&self.netrc_in_use);
        let mut changes = Vec::new();
        let snippet = self.snippet((netrc != self.netrc_in_use).then_some(&*netrc));
        let snippet_file = snippet_file(self.machine.dir(), &self.url)?;
        let summary = settings(&snippet);
        changes.push(Change::plan(&snippet_file, Some(snippet), PUBLIC, summary)?);
        if let Some(token) = &self.token {
            changes.push(self.plan_login(&netrc, token)?);
        }
        let nix_conf = self.machine.nix_conf();
        let text = files::read(&nix_conf)?;
        let name = snippet_file.file_name().unwrap_or_default().display();
        let line = format!("!include {name}");
        let is_there = text.as_deref().and_then(|text| edit::find(text, &self.url));
        if is_there.is_none() {
            let after = edit::add(text.as_deref(), &line, &self.url);
            changes.push(Change::plan(
                &nix_conf,
                Some(after),
                PUBLIC,
                format!("+ {line}"),
            )?);
        }
        Ok(changes.into_iter().flatten().collect())
    }

    /// Returns the text of the cache's own settings file. `netrc`: the value to set for
    /// `netrc-file`, or `None` if its present value is right.
    fn snippet(&self, netrc: Option<&Path>) -> String {
        let (url, keys) = (&self.url, keys::texts(&self.keys));
        let netrc = match netrc {
            Some(netrc) if self.token.is_some() => format!("netrc-file = {}\n", netrc.display()),
            _ => String::new(),
        };
        format!(
            "{}extra-substituters = {url}\nextra-trusted-public-keys = {keys}\n{netrc}",
            first_line(url)
        )
    }

    /// Plans to write the token into the netrc file. Returns `None` if the file has this entry
    /// already.
    fn plan_login(&self, netrc: &Path, token: &str) -> anyhow::Result<Option<Change>> {
        let before = files::read(netrc)?;
        // An entry that an earlier run wrote for this cache is replaced.
        let own = before
            .as_deref()
            .and_then(|text| edit::find(text, &self.url));
        let rest = match &before {
            Some(text) if own.is_some() => edit::remove(text, &self.url),
            other => other.clone(),
        };
        let known = login(rest.as_deref().unwrap_or_default(), &self.host);
        if let Some(known) = known {
            ensure!(
                known.password == token,
                "{netrc:?} has another login for {} already, and Nix uses the first one for all \
                 caches of a host: remove it, or ask for one token for all these caches",
                self.host
            );
            return Ok(None);
        }
        let own = own.and_then(|line| login(line, &self.host));
        if own.is_some_and(|own| own.password != token) {
            let others = others(self.machine.dir(), &self.url);
            notice(&format!(
                "warning: the new token replaces the earlier one for {} in {netrc:?}{}",
                self.host,
                match others.is_empty() {
                    true => String::new(),
                    false => format!("; Nix sends it to {}, too", others.join(", ")),
                }
            ));
        }
        let entry = |token: &str| format!("machine {} login {LOGIN} password {token}", self.host);
        let after = edit::add(rest.as_deref(), &entry(token), &self.url);
        let change = Change::plan(netrc, Some(after), SECRET, format!("+ {}", entry("***")))?;
        Ok(change.map(Change::closing))
    }

    /// Prints the settings as Nix code, for a machine whose `nix.conf` is generated.
    fn print_nix_code(&self, out: &mut dyn Write) -> io::Result<()> {
        let nix_conf = self.machine.nix_conf();
        writeln!(
            out,
            "{} is generated by NixOS or home-manager. Nothing was changed. Add this to \
             configuration.nix, and rebuild:\n",
            nix_conf.display()
        )?;
        let keys = self.keys.iter().map(|key| format!(" \"{key}\""));
        let keys: String = keys.collect();
        writeln!(
            out,
            "nix.settings = {{\n  extra-substituters = [ \"{}\" ];\n  \
             extra-trusted-public-keys = [{keys} ];\n}};",
            self.url
        )?;
        if self.token.is_some() {
            writeln!(
                out,
                "\nAdd the login to {}, with the token as the password:\n\nmachine {} login \
                 {LOGIN} password ***",
                self.netrc_in_use.display(),
                self.host
            )?;
        }
        Ok(())
    }

    /// Prints warnings about settings that the changes do not put into effect.
    fn print_notes(&self, has_changed: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let netrc = self.machine.netrc(&self.netrc_in_use);
        if self.token.is_some() && netrc != self.netrc_in_use && self.netrc_in_use.exists() {
            writeln!(
                out,
                "note: Nix reads your logins from {} now, and no longer from {}",
                netrc.display(),
                self.netrc_in_use.display()
            )?;
        }
        if self.machine.is_root() && has_changed {
            writeln!(
                out,
                "note: if a Nix daemon runs, restart it: systemctl restart nix-daemon"
            )?;
        }
        let Some(user) = self.machine.untrusted_user(&self.url, &self.keys) else {
            return Ok(Outcome::Complete);
        };
        let (url, keys) = (&self.url, keys::texts(&self.keys));
        let by_key: String = self
            .keys
            .iter()
            .map(|key| format!(" --key {key}"))
            .collect();
        let login = match &self.token {
            Some(_) => " --token-file FILE",
            None => "",
        };
        writeln!(
            out,
            "\nThis is not enough: {user} is not a trusted user of this machine's Nix daemon, \
             which ignores these settings. Ask an administrator of the machine to run\n\n    \
             sudo samovar use{login}{by_key} {url}\n\nor to add these lines to \
             /etc/nix/nix.conf, and to restart nix-daemon:\n\n    \
             extra-trusted-substituters = {url}\n    extra-trusted-public-keys = {keys}"
        )?;
        if self.token.is_some() {
            writeln!(
                out,
                "\nThe daemon reads the token from its own netrc file, /etc/nix/netrc."
            )?;
        }
        Ok(Outcome::Incomplete)
    }
}

/// Plans the removal of all that `samovar use` has added for the cache at `url`.
fn undo(machine: &Machine, url: &str) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut netrc_files = vec![netrc_of_nix(), machine.dir().join("netrc")];
    netrc_files.dedup();
    let edited = [(machine.nix_conf(), PUBLIC)].into_iter();
    for (path, mode) in edited.chain(netrc_files.into_iter().map(|path| (path, SECRET))) {
        let Some(text) = files::read(&path).ok().flatten() else {
            continue;
        };
        if let Some(line) = edit::find(&text, url) {
            let line = match mode {
                SECRET => "the login",
                _ => line,
            };
            let after = edit::remove(&text, url);
            changes.push(Change::plan(&path, after, mode, format!("- {line}"))?);
        }
    }
    let has_login = changes.iter().flatten().any(|change| change.is_secret());
    let others = others(machine.dir(), url);
    if has_login && !others.is_empty() {
        notice(&format!(
            "warning: Nix sends the login to {}, too: run samovar use for it again",
            others.join(", ")
        ));
    }
    let snippet = snippet_file(machine.dir(), url)?;
    if let Some(text) = files::read(&snippet)? {
        changes.push(Change::plan(&snippet, None, PUBLIC, settings(&text))?);
    }
    Ok(changes.into_iter().flatten().collect())
}

/// Returns the path of the settings file for the cache at `url`.
fn snippet_file(dir: &Path, url: &str) -> anyhow::Result<PathBuf> {
    let mut name = String::from("samovar");
    let words = url.split(|char: char| !char.is_ascii_alphanumeric() && char != '.');
    for word in words.filter(|word| !word.is_empty()) {
        name.push('-');
        name.push_str(word);
    }
    let file = dir.join(name + ".conf");
    let text = files::read(&file)?;
    ensure!(
        text.is_none_or(|text| text.starts_with(&first_line(url))),
        "{file:?} has the settings for another cache than {url}: rename this file"
    );
    Ok(file)
}

/// Returns the first line of a cache's settings file: a comment.
fn first_line(url: &str) -> String {
    format!("{FIRST_LINE}{url}\n")
}

/// Returns the URLs of the other caches on the same host that are set up here.
fn others(dir: &Path, url: &str) -> Vec<String> {
    let host = |url: &str| Some(Remote::parse(url).ok()?.host().to_owned());
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let urls = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_ours = name.starts_with("samovar-") && name.ends_with(".conf");
        let text = is_ours
            .then(|| files::read(&entry.path()).ok())
            .flatten()??;
        Some(text.lines().next()?.strip_prefix(FIRST_LINE)?.to_owned())
    });
    let mut others: Vec<String> = urls
        .filter(|other| other != url && host(other) == host(url))
        .collect();
    others.sort();
    others
}

/// Asks the server about the token with which `http` sends its requests. Returns a sentence about
/// it.
///
/// # Errors
///
/// The server cannot be reached, or refuses the token.
fn checked_token(http: &Http) -> anyhow::Result<&'static str> {
    let may_push = may_push(http);
    match may_push {
        Ok(Some(true)) => return Ok("the cache accepts the token, which may push"),
        Ok(Some(false)) => return Ok("the cache accepts the token, which may not push"),
        Err(error) if reason(&error) != Some(Failed::Refused) => return Err(error),
        Ok(None) | Err(_) => {}
    }
    // The server has no tokens for uploads, or this is none of them. It may be a token for reading:
    // `http` has read nix-cache-info with it.
    let is_public = http.without_login().get(INFO_PATH)?.status() == 200;
    match (is_public, may_push) {
        (false, _) => Ok("the cache accepts the token for reading"),
        (true, Ok(_)) => Ok(
            "the token was not checked: the cache is public and takes no uploads, so it needs none",
        ),
        (true, Err(error)) => Err(error),
    }
}

/// Returns the lines of a settings file without its comments.
fn settings(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A token and the description of its source.
struct Token {
    text: String,
    source: String,
}

impl Token {
    /// Exchanges the ID token of this CI job for a token. Lets GitHub hide the token in the log of
    /// the job.
    fn of_job(options: &OidcOptions, remote: &Remote, out: &mut dyn Write) -> anyhow::Result<Self> {
        let text = options.exchange(remote)?.token();
        if std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true") {
            writeln!(out, "::add-mask::{text}")?;
            out.flush()?;
        }
        Ok(Self {
            text,
            source: "the token for the ID token of this job".to_owned(),
        })
    }
}

/// Reads the token from the file (`-`: standard input) or the environment variable. Returns `None`
/// if there is no file and the variable is unset or empty.
fn token(file: Option<&Path>) -> anyhow::Result<Option<Token>> {
    let (text, place) = match file {
        Some(file) if file == Path::new("-") => {
            let mut text = String::new();
            io::stdin().take(TOKEN_LEN_MAX).read_to_string(&mut text)?;
            (text, "standard input".to_owned())
        }
        Some(file) => {
            warn_if_open(file);
            let text = files::read(file)?;
            let text = text.with_context(|| format!("there is no file {file:?}"))?;
            (text, format!("{file:?}"))
        }
        None => match std::env::var(TOKEN_VARIABLE) {
            Ok(text) if !text.is_empty() => (text, TOKEN_VARIABLE.to_owned()),
            _ => return Ok(None),
        },
    };
    Ok(Some(Token {
        text: token_in(&text, &place)?.to_owned(),
        source: format!("the token in {place}"),
    }))
}
