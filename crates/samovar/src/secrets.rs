//! `samovar password` and `samovar token`: lines for the files that say who may read.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use samovar_cache::access::{hash_password, new_token};

/// A longer one would not fit into a request, in bytes.
const PASSWORD_LEN_MAX: usize = 512;

pub(crate) fn password() -> Command {
    Command::new("password")
        .about("Prints a line for access.users-file: a user, and a hash of the password")
        .after_help(
            "Reads the password from the first line of standard input, without showing it. As in: \
             samovar password ada >> users",
        )
        .arg(name().help("Who it is for; \"\" for clients that send no login"))
}

pub(crate) fn token() -> Command {
    Command::new("token")
        .about("Makes a token, and prints the line for access.tokens-file")
        .after_help(
            "The token itself is written to standard error, and nowhere else. As in: samovar \
             token ci >> tokens",
        )
        .arg(name().help("What the token is called"))
}

fn name() -> Arg {
    Arg::new("name").value_name("NAME").required(true)
}

pub(crate) fn hash(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name = checked_name(matches)?;
    let input = io::stdin();
    let password = match input.is_terminal() {
        true => from_terminal(name)?,
        false => first_line(&mut input.lock())?,
    };
    anyhow::ensure!(
        !password.is_empty() && password.len() <= PASSWORD_LEN_MAX,
        "a password of 1 to {PASSWORD_LEN_MAX} bytes is expected on standard input"
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

/// What somebody types, without its being seen.
///
/// # Errors
///
/// If it is interrupted, or the terminal does as it likes.
fn from_terminal(name: &str) -> anyhow::Result<Vec<u8>> {
    let terminal = Quiet::new(io::stdin())?;
    // Without one who reads it there is nobody to ask.
    write!(io::stderr(), "Password of {name:?}: ").ok();
    let typed = typed(&mut terminal.0.lock());
    drop(terminal);
    writeln!(io::stderr()).ok();
    typed?.context("interrupted")
}

/// The bytes of a line as a terminal would put it together; `None`: interrupted.
fn typed(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut password = Vec::new();
    let mut byte = [0];
    while password.len() <= PASSWORD_LEN_MAX && input.read(&mut byte)? == 1 {
        match byte {
            [b'\n' | b'\r' | END] => break,
            [INTERRUPT] => return Ok(None),
            [ERASE_LINE] => password.clear(),
            // A character may have several bytes.
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

/// A terminal that shows nothing of what is typed. Keys that would end this program come as bytes,
/// so that it always ends with the terminal as it was.
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
    anyhow::ensure!(is_plain, "a name holds no colon and no control characters");
    anyhow::ensure!(
        !name.starts_with('#'),
        "a line that begins with # is a remark"
    );
    Ok(name)
}
