//! The texts of `--help` and `--version`.
//!
//! `help.txt` is generated from the declarations of the options, and from the tables of the tests
//! below for the options of nix-serve alone: `UPDATE=1 cargo test -p nix-serve --lib help`.

/// Returns the output of `--help`.
pub fn help() -> &'static str {
    include_str!("help.txt")
}

/// Returns the output of `--version`, without a newline.
pub fn version() -> String {
    format!("nix-serve (Samovar) {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use samovar_server::config::{Kind, OptionSpec};

    use super::*;
    use crate::cli::option::{OPTIONS, Takes, find};
    use crate::environment;

    /// Column of the descriptions.
    const COLUMN: usize = 28;

    /// Maximum length of a line.
    const WIDTH: usize = 79;

    /// Options of nix-serve alone: the heading, the option, the description.
    const OWN: [(&str, &str, &str); 11] = [
        (
            "Listening",
            "  -o, --host HOST",
            "Address or name; also * *4 *6 !4 !6, for all addresses with one family preferred or \
             alone.",
        ),
        (
            "Listening",
            "  -p, --port NUMBER",
            "Port for --host. [default: 5000]",
        ),
        (
            "Listening",
            "  -S, --socket PATH",
            "Unix socket. --listen overrides --socket, which overrides --host and --port.",
        ),
        (
            "Listening",
            "      --enable-ssl, --disable-ssl",
            "HTTPS on all TCP addresses, or on none. HOST:PORT:ssl in --listen turns it on for \
             this address alone. [default: on if a certificate is given]",
        ),
        (
            "Connections and threads",
            "      --timeout TIME",
            "Sets --connections-stall-time, and --connections-idle-time unless that is given.",
        ),
        (
            "Connections and threads",
            "      --disable-keepalive",
            "One request for each connection.",
        ),
        (
            "Logs and monitoring",
            "      --quiet, --verbose",
            "No access log; access log on standard output and debug messages in the error log.",
        ),
        (
            "Logs and monitoring",
            "      --log-format FORMAT",
            "quiet, default, real-ip, json, verbose or debug; all but quiet log requests on \
             standard output.",
        ),
        ("Process", "  -D, --daemonize", "Run in the background."),
        ("Process", "  -h, --help", "Print this help."),
        ("Process", "  -v, --version", "Print the version."),
    ];

    const HEAD: &str = "\
nix-serve - serve the Nix store of this machine as a binary cache over HTTP

Usage: nix-serve [OPTION]...
";

    const TAIL: &str = "
Environment
  NIX_SECRET_KEY_FILE       file of the secret key that signs narinfos
  NIX_REMOTE                default of --store
  NIX_STORE_DIR, NIX_STATE_DIR, NIX_LOG_DIR, NIX_CONF_DIR
                            as for Nix

Signals
  HUP    reload keys and certificates, reopen logs
  USR1   reopen logs
  USR2   zero-downtime upgrade: start the executable again, pass it the sockets
  QUIT   finish requests in progress, then exit      TERM, INT  exit

Sizes are numbers of bytes, or such as 64MiB; times are seconds, or such as
10min; \"off\" is 0. \"--port 80\", \"--port=80\" and \"-port 80\" are the same, and so
are \"_\" and \"-\" in names. The options of starman, plackup and nix-serve-ng are
accepted; those without effect, and unknown ones, cause a warning. Options that
ask for protection that this program cannot give are errors: TLS without both
certificate and key, access rules, Perl code that may hold such rules
(-e, --app), and the options of \"samovar serve\" for access, policies and
signing.
";

    /// Formats an option and its description, which begins in a column of its own.
    fn entry(option: &str, description: &str) -> String {
        let mut text = option.to_owned();
        let mut at = option.len();
        if at + 2 > COLUMN {
            text.push('\n');
            at = 0;
        }
        text.push_str(&" ".repeat(COLUMN - at));
        at = COLUMN;
        for (index, word) in description.split(' ').enumerate() {
            if index > 0 && at + 1 + word.len() > WIDTH {
                text.push('\n');
                text.push_str(&" ".repeat(COLUMN));
                at = COLUMN;
            } else if index > 0 {
                text.push(' ');
                at += 1;
            }
            text.push_str(word);
            at += word.len();
        }
        text.push('\n');
        text
    }

    /// Formats an option of both programs.
    fn declared(spec: &OptionSpec) -> String {
        let (row, _) = find(&spec.option()).expect("is known");
        let short = row.names.first();
        let short = short.map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
        let value = match spec.kind {
            Kind::Switch => String::new(),
            kind => format!(" {}", kind.value_name()),
        };
        let mut text = spec.help.to_owned();
        // The configuration file has dotted names.
        for other in OptionSpec::all().filter(|other| other.name.contains('.')) {
            text = text.replace(other.name, &format!("--{}", other.option()));
        }
        let variables = environment::OPTIONS.iter();
        let mut variables = variables.filter(|(_, option)| *option == spec.option());
        let variable = variables.next().map(|(name, _)| format!("${name}, or "));
        let default = spec.default_in_nix_serve();
        text.push_str(&format!(
            " [default: {}{default}]",
            variable.unwrap_or_default()
        ));
        if let [alias] = spec.aliases {
            text.push_str(&format!(" [also --{alias}]"));
        }
        entry(&format!("  {short}--{}{value}", spec.option()), &text)
    }

    fn generated() -> String {
        let mut text = HEAD.to_owned();
        let mut headings: Vec<&str> = Vec::new();
        for (heading, spec) in OptionSpec::by_heading().filter(|(_, spec)| spec.in_nix_serve) {
            if headings.last() != Some(&heading) {
                own(headings.last().copied(), &mut text);
                text.push_str(&format!("\n{heading}\n"));
                headings.push(heading);
            }
            text.push_str(&declared(spec));
        }
        own(headings.last().copied(), &mut text);
        text + TAIL
    }

    /// Appends the options of nix-serve alone below a heading.
    fn own(heading: Option<&str>, text: &mut String) {
        for (_, option, description) in OWN.iter().filter(|own| Some(own.0) == heading) {
            text.push_str(&entry(option, description));
        }
    }

    #[test]
    fn the_help_matches_the_declarations() {
        let made = generated();
        if env::var_os("UPDATE").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/help.txt");
            fs::write(file, &made).expect("the sources can be written");
        } else {
            assert!(
                made == help(),
                "out of date: UPDATE=1 cargo test -p nix-serve --lib help"
            );
        }
    }

    fn words() -> Vec<String> {
        let text = generated();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        // This is an option of nix-store.
        let words = words.filter(|word| *word != "--generate-binary-cache-key");
        words.map(str::to_owned).collect()
    }

    #[test]
    fn every_line_fits_a_terminal() {
        let text = generated();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(text.ends_with('\n') && !text.contains('\t'));
    }

    #[test]
    fn every_option_with_a_needed_value_is_explained() {
        let needs_value = OPTIONS
            .iter()
            .filter(|option| matches!(option.takes, Takes::Value(..)) && option.spec.is_none());
        for option in needs_value {
            let name = format!("--{}", option.names[0]);
            assert!(words().contains(&name), "{name}");
        }
    }

    #[test]
    fn every_option_that_is_explained_is_known() {
        for word in words().iter().filter(|word| word.starts_with("--")) {
            let name = word.trim_start_matches('-');
            assert!(find(name).is_some(), "{word}");
        }
    }
}
