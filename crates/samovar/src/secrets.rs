//! `samovar password` and `samovar token`: print lines for the access files.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use samovar_cache::access::{hash_password, new_token};

/// Maximum length of a password, bytes: a longer one would not fit into a request.
const PASSWORD_LEN_MAX: usize = 512;

pub(crate) fn password() -> Command {
    Command::new("password")
        .about("Prints a line for access.users-file: a user name and a password hash")
        .after_help(
            "Reads the password from the first line of standard input, without echo on a \
             terminal. Example: samovar password ada >> users",
        )
        .arg(name().help("User name; \"\" for clients that send only a password"))
}

pub(crate) fn token() -> Command {
    Command::new("token")
        .about("Makes tokens: for a storage (see create), or as a line for access.tokens-file")
        .after_help(
            "There are two kinds of tokens. samovar token create makes a token of a storage: it \
             begins with smv1_, and may read, push and pin. samovar token line makes a token for \
             access.tokens-file, which may only read. samovar token NAME is short for samovar \
             token line NAME.",
        )
        .arg(name().help("Name of the token"))
}

fn name() -> Arg {
    Arg::new("name").value_name("NAME").required(true)
}

pub(crate) fn hash(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name = checked_name(matches)?;
    let input = io::stdin();
    let password = if input.is_terminal() {
        from_terminal(name)?
    } else {
        first_line(&mut input.lock())?
    };
    anyhow::ensure!(
        !password.is_empty() && password.len() <= PASSWORD_LEN_MAX,
        "expected a password of 1 to {PASSWORD_LEN_MAX} bytes on standard input"
    );
    let hash = hash_password(&password)?;
    Ok(writeln!(out, "{name}:{hash}")?)
}

fn first_line(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut password = Vec::new();
    let mut byte = [0];
    while password.len() <= PASSWORD_LEN_MAX && input.read(&mut byte)? == 1 && byte != *b"\n" {
        password.extend_from_slice(&byte);
    }
    Ok(password)
}

/// Prompts for the password of `name`, and reads it from the terminal without echo.
fn from_terminal(name: &str) -> anyhow::Result<Vec<u8>> {
    let terminal = Quiet::new(io::stdin())?;
    // Ignore errors: standard error may be closed, and the user can type the password nevertheless.
    write!(io::stderr(), "Password for {name:?}: ").ok();
    let typed = typed(&mut terminal.0.lock());
    drop(terminal);
    writeln!(io::stderr()).ok();
    typed?.context("interrupted")
}

/// Reads a line, and handles the terminal's editing keys. Returns `None` if the user interrupts it.
fn typed(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut password = Vec::new();
    let mut byte = [0];
    while password.len() <= PASSWORD_LEN_MAX && input.read(&mut byte)? == 1 {
        match byte {
            [b'\n' | b'\r' | END] => break,
            [INTERRUPT] => return Ok(None),
            [ERASE_LINE] => password.clear(),
            // Delete all bytes of the last character, which may be several in UTF-8.
            [BACKSPACE | DELETE] => while password.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            [byte] => password.push(byte),
        }
    }
    Ok(Some(password))
}

const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const ERASE_LINE: u8 = 21;
const DELETE: u8 = 127;

/// A terminal whose echo and signal keys are turned off. Signal keys are read as bytes, so that the
/// mode is always restored before the program ends.
struct Quiet(io::Stdin, Termios);

impl Quiet {
    fn new(input: io::Stdin) -> io::Result<Self> {
        let before = tcgetattr(&input)?;
        let mut quiet = before.clone();
        quiet.local_modes &= !(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(&input, OptionalActions::Flush, &quiet)?;
        Ok(Self(input, before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        tcsetattr(&self.0, OptionalActions::Flush, &self.1).ok();
    }
}

pub(crate) fn make(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (token, line) = new_token(checked_name(matches)?)?;
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(writeln!(io::stderr(), "{token}")?)
}

fn checked_name(matches: &ArgMatches) -> anyhow::Result<&str> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    let is_plain = !name.contains(':') && !name.chars().any(char::is_control);
    anyhow::ensure!(
        is_plain,
        "the name must not contain a colon or a control character"
    );
    anyhow::ensure!(
        !name.starts_with('#'),
        "the name must not start with #, which starts a comment"
    );
    Ok(name)
}
