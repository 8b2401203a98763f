//! `suites`: runs conformance suites against our servers, or against the server at an address.
//!
//! | suite | contents | origin |
//! | --- | --- | --- |
//! | `h2spec` | 145 cases of HTTP/2 | a Go module, built here; versions in `conformance/h2spec/` |
//! | `h2spec-tls` | the same cases over TLS | likewise |
//! | `h1spec` | 33 cases of HTTP/1.1 by dropseed, in Python | installed by hand, see below |
//! | `uws-h1spec` | 33 cases of HTTP/1.1 by uNetworking, for Deno | installed by hand; Deno from npm |
//! | `nix_cache` | the binary-cache protocol, against nix-serve | `conformance/nix_cache/` |
//!
//! The h1spec suites are in no registry. They run if their source is in `.samovar/tools/NAME`;
//! otherwise the task reports that they are missing. Expected results are in
//! `conformance/results/`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use testkit::process::{Process, without_variables};

use crate::command::{build_as_tested, find, progress, repository, run};

/// npm package of Deno, which runs uNetworking's suite.
const DENO: &str = "deno@2.9.6";

const NAMES: [&str; 5] = ["h2spec", "h2spec-tls", "h1spec", "uws-h1spec", NIX_CACHE];

const NIX_CACHE: &str = "nix_cache";

/// The options on the command line of `suites`.
struct Options<'a> {
    /// Address of another server to test; `None` to test ours. The results of another one are
    /// printed and not compared.
    address: Option<&'a str>,
    /// Whether to record the results as the expected ones.
    updates: bool,
    /// Names of the suites to run; all if empty.
    names: Vec<&'a str>,
}

/// Runs suites with the arguments after `suites`. Fails if a suite cannot be run, or our results
/// differ from the committed ones.
pub(crate) fn run_suites(words: &[&str]) -> Result<()> {
    let options = parse(words)?;
    let own = match options.address {
        Some(_) => None,
        None => Some(Own::start()?),
    };
    let address = options.address.or(own.as_ref().map(|own| &*own.address));
    let address = address.context("either ours or another")?;
    let mut differing = Vec::new();
    for name in NAMES {
        if !options.names.is_empty() && !options.names.contains(&name) {
            continue;
        }
        let address = match &own {
            Some(own) if name == "h2spec-tls" => &own.secure_address,
            Some(own) if name == NIX_CACHE => &own.cache_address,
            _ => address,
        };
        let Some(results) = results_of(name, address)? else {
            progress(&format!(
                "skipping {name}, which is not installed; see conformance/README.md"
            ));
            continue;
        };
        let passed = results
            .iter()
            .filter(|line| line.starts_with("pass "))
            .count();
        println!("{name}: {passed} of {} passed", results.len());
        let seen = results.join("\n") + "\n";
        let file = repository().join(format!("conformance/results/{name}.txt"));
        if own.is_none() {
            for line in results.iter().filter(|line| !line.starts_with("pass ")) {
                println!("  {line}");
            }
        } else if options.updates {
            fs::write(&file, seen)?;
        } else {
            let expected = fs::read_to_string(&file).unwrap_or_default();
            if expected != seen {
                println!("{}", difference(&expected, &seen));
                differing.push(name);
            }
        }
    }
    if !differing.is_empty() {
        bail!(
            "{} differs from conformance/results/; if that is right: xtask suites --update",
            differing.join(", ")
        );
    }
    Ok(())
}

fn parse<'a>(words: &[&'a str]) -> Result<Options<'a>> {
    let mut options = Options {
        address: None,
        updates: false,
        names: Vec::new(),
    };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        match word {
            "--update" => options.updates = true,
            "--address" => options.address = Some(words.next().context("--address HOST:PORT")?),
            name if NAMES.contains(&name) => options.names.push(name),
            _ => bail!("usage: xtask suites [--update] [--address HOST:PORT] [NAME…]"),
        }
    }
    Ok(options)
}

/// Our servers, which the suites test; killed on drop.
struct Own {
    /// `conformance/examples/echo.rs`, and nix-serve on the sample store.
    _processes: [Process; 2],
    address: String,
    secure_address: String,
    cache_address: String,
}

impl Own {
    fn start() -> Result<Self> {
        let bins = ["--bin", "nix-serve", "--bin", "nix-cache-suite"];
        let programs = build_as_tested(&[&["--example", "echo"][..], &bins].concat())?;
        let store = sample()?;
        let mut cache = without_variables(&programs.join("nix-serve").to_string_lossy(), &["NIX_"]);
        cache.args(["--listen", "127.0.0.1:0", "--store"]);
        let (cache, cache_address) =
            Process::serving(cache.arg(format!("local?root={}", store.display())));
        // The echo server exits at the end of its standard input, which `Process` keeps open.
        let mut echo = Command::new(programs.join("examples/echo"));
        let echo = Process::spawn_for_stdout(echo.stdin(Stdio::piped()));
        Ok(Self {
            address: echo.wait_for(""),
            secure_address: echo.wait_for(""),
            cache_address: cache_address.to_string(),
            _processes: [echo, cache],
        })
    }
}

/// Returns the folder of the sample store, which the suite `nix_cache` needs.
fn sample() -> Result<PathBuf> {
    let store = repository().join(".samovar/sample").canonicalize();
    store.context("no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`")
}

/// Returns `pass NAME` or `fail NAME` for each case, in order; `None` if the suite is not
/// installed.
fn results_of(name: &str, address: &str) -> Result<Option<Vec<String>>> {
    let (host, port) = address.rsplit_once(':').context("HOST:PORT")?;
    let tools = repository().join(".samovar/tools");
    match name {
        "h2spec" | "h2spec-tls" => {
            let Some(program) = h2spec(&tools)? else {
                return Ok(None);
            };
            let report = tools.join("h2spec.xml");
            let mut command = Command::new(program);
            command
                .args(["-h", host, "-p", port, "--timeout", "2", "--junit-report"])
                .arg(&report);
            if name == "h2spec-tls" {
                command.args(["--tls", "--insecure"]);
            }
            said(&mut command)?;
            Ok(Some(junit(&fs::read_to_string(&report)?)))
        }
        "h1spec" => {
            let folder = tools.join("h1spec");
            if !folder.join("h1spec/runner.py").exists() {
                return Ok(None);
            }
            let mut command = Command::new("python3");
            let script = "import sys; from h1spec import main; sys.argv[0] = 'h1spec'; main()";
            command
                .args(["-c", script, "--strict", address])
                .current_dir(folder);
            Ok(Some(marked(&said(&mut command)?, '✓', '✗')))
        }
        NIX_CACHE => {
            let program = build_as_tested(&["--bin", "nix-cache-suite"])?.join("nix-cache-suite");
            let mut command = Command::new(program);
            command.arg(format!("http://{address}")).arg("--store");
            let output = command.arg(sample()?).output().context("the suite")?;
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            let results = String::from_utf8_lossy(&output.stdout);
            Ok(Some(results.lines().map(str::to_owned).collect()))
        }
        _ => {
            let script = tools.join("uws-h1spec/http_test.ts");
            if !script.exists() {
                return Ok(None);
            }
            let mut command = Command::new(deno(&tools)?);
            command
                .args(["run", "--quiet", "--no-check", "--allow-net"])
                .arg(script);
            command.args([host, port]);
            let mut results = marked(&said(&mut command)?, '✅', '❌');
            // Concurrent cases are reported in the order in which they end.
            results.sort();
            Ok(Some(results))
        }
    }
}

/// Returns the standard output and standard error of a suite, even if it exits with an error
/// because cases failed.
fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    let said = [done.stdout, done.stderr].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Builds the committed version of h2spec; returns `None` without Go.
fn h2spec(tools: &Path) -> Result<Option<PathBuf>> {
    let program = tools.join("bin/h2spec");
    if program.exists() {
        return Ok(Some(program));
    }
    let Some(go) = find("go") else {
        return Ok(None);
    };
    progress("building h2spec (half a minute, only once)");
    fs::create_dir_all(tools.join("bin"))?;
    run(Command::new(go)
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg("github.com/summerwind/h2spec/cmd/h2spec")
        .current_dir(repository().join("conformance/h2spec")))?;
    Ok(Some(program))
}

fn deno(tools: &Path) -> Result<PathBuf> {
    let folder = tools.join("deno");
    let program = folder.join("node_modules/.bin/deno");
    if !program.exists() {
        progress("installing Deno from npm");
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--prefix"])
            .arg(&folder)
            .arg(DENO);
        run(&mut npm)?;
    }
    Ok(program)
}

/// Parses lines that start with the mark `good` or `bad`, after colour codes: `✓ 5. name: details`.
fn marked(said: &str, good: char, bad: char) -> Vec<String> {
    let line = |line: &str| {
        let word = match line.chars().find(|&c| c == good || c == bad)? {
            mark if mark == good => "pass",
            _ => "fail",
        };
        let name = line.split([good, bad]).nth(1)?;
        let name = plain(name);
        let name = name.trim().trim_start_matches(|c: char| c.is_ascii_digit());
        let name = name.trim_start_matches('.').trim();
        let details = ["Server waited", "Response Status", "Read operation"];
        let name = match name.split_once(": ") {
            Some((name, rest)) if details.iter().any(|it| rest.starts_with(it)) => name,
            _ => name,
        };
        Some(format!("{word} {name}"))
    };
    said.lines().filter_map(line).collect()
}

/// Removes the codes of terminal colours from a text.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    plain
}

/// Parses the cases of a `JUnit` report: section, name, and whether it failed.
fn junit(report: &str) -> Vec<String> {
    let case = |part: &str| {
        let attribute = |name: &str| {
            let (_, rest) = part.split_once(&format!("{name}=\""))?;
            Some(
                rest.split_once('"')?
                    .0
                    .replace("&#39;", "'")
                    .replace("&#34;", "'"),
            )
        };
        let body = part.split_once("</testcase>").map_or("", |(body, _)| body);
        let is_bad = ["<failure", "<error", "<skipped"]
            .iter()
            .any(|bad| body.contains(bad));
        let word = if is_bad { "fail" } else { "pass" };
        let (section, name) = (attribute("package")?, attribute("classname")?);
        Some(format!("{word} {section}: {name}"))
    };
    report
        .split("<testcase ")
        .skip(1)
        .filter_map(case)
        .collect()
}

/// Returns the lines that only one of the two texts has.
fn difference(expected: &str, seen: &str) -> String {
    let mut text = String::new();
    for (sign, these, others) in [('-', expected, seen), ('+', seen, expected)] {
        for line in these
            .lines()
            .filter(|line| !others.lines().any(|other| other == *line))
        {
            // Writing to a `String` never fails.
            writeln!(text, "  {sign} {line}").ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_lines_become_results() {
        let said = "Title\n  \u{1b}[32m✓\u{1b}[0m 5. A name\n  \u{1b}[31m✗\u{1b}[0m 6. Another\n";
        assert_eq!(marked(said, '✓', '✗'), ["pass A name", "fail Another"]);
        let said = "❌ A, b: Response Status Code 0, Expected ranges: [[1]]\n3 out of 4 passed.\n";
        assert_eq!(marked(said, '✅', '❌'), ["fail A, b"]);
    }

    #[test]
    fn junit_reports_become_results() {
        let report = "<testsuite><testcase package=\"http2/3.5\" classname=\"Sends\" time=\"1\">\
                      </testcase><testcase package=\"http2/4\" classname=\"It&#39;s\" time=\"1\">\
                      <failure>no</failure></testcase></testsuite>";
        assert_eq!(
            junit(report),
            ["pass http2/3.5: Sends", "fail http2/4: It's"]
        );
    }

    #[test]
    fn missing_and_additional_results_are_differences() {
        assert_eq!(
            difference("pass a\npass b\n", "pass a\nfail b\n"),
            "  - pass b\n  + fail b\n"
        );
    }
}
