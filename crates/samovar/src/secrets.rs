//! `samovar password` and `samovar token`: lines for the files that say who may read.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use samovar_cache::access::{hash_password, new_token};

/// A longer one would not fit into a request, in bytes.
const PASSWORD_LEN_MAX: usize = 512;

pub(crate) fn password() -> Command {
    Command::new("password")
        .about("Prints a line for access.users-file: a user, and a hash of the password")
        .after_help(
            "Reads the password from the first line of standard input. As in: samovar password \
             ada >> users",
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
    let mut input = io::stdin().lock();
    if input.is_terminal() {
        // Without a terminal there is nobody to see it.
        write!(io::stderr(), "Password of {name:?}, as you will see it: ").ok();
    }
    let mut password = Vec::new();
    let mut byte = [0];
    while password.len() <= PASSWORD_LEN_MAX && input.read(&mut byte)? == 1 && byte != *b"\n" {
        password.extend_from_slice(&byte);
    }
    anyhow::ensure!(
        !password.is_empty() && password.len() <= PASSWORD_LEN_MAX,
        "a password of 1 to {PASSWORD_LEN_MAX} bytes is expected on standard input"
    );
    let hash = hash_password(&password)?;
    Ok(writeln!(out, "{name}:{hash}")?)
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
