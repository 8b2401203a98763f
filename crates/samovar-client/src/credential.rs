//! Tokens in files and in the environment.

use std::fs::File;
use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use samovar_protocol::names::TOKEN_PREFIX;

use crate::sys::{DESCRIPTORS, hide_memory, own_program};

/// Environment variable that may contain a token.
pub const TOKEN_VARIABLE: &str = "SAMOVAR_TOKEN";

/// Environment variable with the ID token of a CI job.
pub const ID_TOKEN_VARIABLE: &str = "SAMOVAR_ID_TOKEN";

/// Environment variable with the number of a pipe that has the token, in a process that
/// [`move_token`] or [`pass_token`] has started.
pub const PIPE_VARIABLE: &str = "SAMOVAR_TOKEN_PIPE";

/// Maximum length of a token that a pipe takes, in bytes.
const TOKEN_LEN_MAX: usize = 4096;

/// Returns the content of [`TOKEN_VARIABLE`], unless it is empty.
pub fn token_variable() -> Option<String> {
    static HIDDEN: OnceLock<Option<String>> = OnceLock::new();
    let hidden = HIDDEN.get_or_init(|| {
        let number: u32 = std::env::var(PIPE_VARIABLE).ok()?.parse().ok()?;
        let mut token = String::new();
        let mut pipe = File::open(format!("{DESCRIPTORS}/{number}")).ok()?;
        pipe.read_to_string(&mut token).ok()?;
        Some(token)
    });
    let token = std::env::var_os(TOKEN_VARIABLE);
    let token = token.map(|token| token.to_string_lossy().into_owned());
    token
        .or_else(|| hidden.clone())
        .filter(|token| !token.is_empty())
}

/// Hides the token of [`TOKEN_VARIABLE`] from the programs that this process starts.
///
/// # Errors
///
/// As [`move_token`] and [`seal`].
pub fn hide_token() -> anyhow::Result<()> {
    move_token()?;
    seal()
}

/// Replaces this process by one that gets the token by a pipe instead of by [`TOKEN_VARIABLE`]:
/// programs that a process starts can read the environment of the process in `/proc`. Does nothing
/// if the variable is not set.
///
/// # Errors
///
/// The process cannot be replaced.
pub fn move_token() -> anyhow::Result<()> {
    let Some(token) = std::env::var_os(TOKEN_VARIABLE).filter(|token| !token.is_empty()) else {
        return Ok(());
    };
    let mut command = Command::new(own_program()?);
    command.arg0("samovar").args(std::env::args_os().skip(1));
    let _pipe = pass(&mut command, &token.to_string_lossy())?;
    let error = command.exec();
    Err(anyhow!(error).context("cannot start this program again, without the token"))
}

/// Reads the token from the pipe of [`move_token`] or [`pass_token`], and hides the memory of this
/// process from other processes of the user. Call it after the process has entered its namespaces,
/// which needs the files of the process in `/proc`.
///
/// # Errors
///
/// The system refuses it.
pub fn seal() -> anyhow::Result<()> {
    token_variable();
    hide_memory().context("cannot hide the memory of the process")
}

/// Returns whether this process gets a token by a pipe.
pub fn is_passed() -> bool {
    std::env::var_os(PIPE_VARIABLE).is_some()
}

/// Passes the token of [`token_variable`] to this program, which `command` starts. Keep the result
/// until the program was started.
///
/// # Errors
///
/// There is no pipe, or the token is too long.
pub fn pass_token(command: &mut Command) -> anyhow::Result<Option<PipeReader>> {
    without_token(command);
    let token = token_variable();
    token.map(|token| pass(command, &token)).transpose()
}

fn pass(command: &mut Command, token: &str) -> anyhow::Result<PipeReader> {
    // A longer one would not fit into the pipe, which nobody reads yet.
    ensure!(
        token.len() <= TOKEN_LEN_MAX,
        "the token in {TOKEN_VARIABLE} is too long"
    );
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(token.as_bytes())?;
    fcntl_setfd(&reader, FdFlags::empty())?;
    command
        .env_remove(TOKEN_VARIABLE)
        .env(PIPE_VARIABLE, reader.as_raw_fd().to_string());
    Ok(reader)
}

/// Removes the token from the environment of a program that does not need it, such as a build with
/// scripts of others. To hide it also in the environment of this process, [`hide_token`] first.
pub fn without_token(command: &mut Command) -> &mut Command {
    for name in [TOKEN_VARIABLE, PIPE_VARIABLE, ID_TOKEN_VARIABLE] {
        command.env_remove(name);
    }
    command
}

/// Returns the token in the first line of a text. `source`: description of the text's origin.
///
/// # Errors
///
/// The line is empty, or has a character that no bearer token has (RFC 6750, 2.1). Most files that
/// are given by mistake have one: keys have a colon, and netrc files have spaces.
pub fn token_in<'a>(text: &'a str, source: &str) -> anyhow::Result<&'a str> {
    let token = text.lines().next().unwrap_or_default().trim();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    ensure!(
        !token.is_empty() && token.bytes().all(is_allowed),
        "{source} has no token in its first line: a token of Samovar begins with {TOKEN_PREFIX}"
    );
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_one_word_of_the_first_line() {
        for text in ["smv1_a-b", " smv1_a-b \n", "smv1_a-b\nmore text"] {
            assert_eq!(token_in(text, "x").unwrap(), "smv1_a-b");
        }
        let jwt = "eyJhbGciOi.eyJzdWIi._-+/==";
        assert_eq!(token_in(jwt, "x").unwrap(), jwt);
        for text in [
            "",
            "\nsmv1_a",
            "a b",
            "cache-1:AAAA",
            "machine a login b password c",
            "ä",
            "\"a\"",
        ] {
            let error = token_in(text, "\"file\"").unwrap_err().to_string();
            assert!(error.starts_with("\"file\" has no token"), "{error}");
        }
    }
}
