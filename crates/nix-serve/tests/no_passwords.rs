//! nix-serve prints no password of a URL that its options or variables contain.

mod support;
mod support_process;

use support::{nix_serve, of_sample};
use support_process::{Ending, Process, ends};

const URL: &str = "http://ada:hunter2@cache.example.org";

#[test]
fn errors_and_warnings_quote_urls_without_their_login() {
    for arguments in [
        &["--store", URL][..],
        &["--listen", URL],
        &["--path", URL],
        &["--admin", URL],
        &["--tls-certificate", URL],
        &["--nar-cache", URL],
        &["--error-log", &format!("{URL}/log")],
    ] {
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let Ending { code, out, errors } = ends(&mut command);
        assert_ne!(code, Some(0), "{arguments:?}");
        let text = format!("{out}{errors}");
        assert!(!text.contains("hunter2"), "{arguments:?}: {text}");
    }
    let mut command = nix_serve();
    command.env("NIX_REMOTE", URL);
    let text = ends(command.args(["--listen", "127.0.0.1:0"])).errors;
    assert!(text.contains("***@") && !text.contains("hunter2"), "{text}");

    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "--verbose", "--proxy", URL, URL]);
    let (server, _) = Process::serving(&mut command);
    assert_eq!(server.count("***@"), 2);
    assert_eq!(server.count("hunter2"), 0);
}
