//! `autobahn`: runs the Autobahn test suite for WebSockets against `examples/websocket_echo.rs`.
//!
//! It requires Python 2.7. Where such an interpreter exists (as `python2.7`, or among pyenv's
//! versions), the suite is installed below `.samovar/tools` and run; otherwise the task reports
//! that it is missing. Expected results are in `conformance/results/autobahn.txt`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testkit::process::Process;
use testkit::{eventually, free_port};

use crate::command::{build_as_tested, find, in_pairs, progress, repository, run, succeeds};

/// Python package of the suite. The version is fixed, because later ones may not support Python
/// 2.7.
const SUITE: &str = "autobahntestsuite==25.10.1";

/// The runs of the suite: the name of each, and the path that it uses on the echo server.
const RUNS: [(&str, &str); 2] = [("worker", "/"), ("inline", "/inline")];
/// Groups of test cases to run. The others (12 and 13) test compression, which the engine does not
/// accept.
const CASES: [&str; 9] = [
    "1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*",
];

/// Runs the suite with the arguments after `autobahn`. Fails if it cannot be run, or a result
/// differs from the committed one.
pub(crate) fn run_autobahn(words: &[&str]) -> Result<()> {
    let updates = match words {
        [] => false,
        ["--update"] => true,
        _ => bail!("usage: xtask autobahn [--update]"),
    };
    let Some(python) = python() else {
        progress("skipping the Autobahn suite, which needs Python 2.7");
        return Ok(());
    };
    let tools = repository().join(".samovar/tools/autobahn");
    install(&python, &tools)?;
    let (_server, port) = start_server()?;
    // Run both at once, because each uses one core only.
    let results = in_pairs(&RUNS, |(name, path)| {
        progress(&format!("Autobahn, {name}: {}", CASES.join(" ")));
        let url = format!("ws://127.0.0.1:{port}{path}");
        run_cases(&python, &tools, name, &url)
    });
    let mut lines = Vec::new();
    for result in results {
        lines.extend(result?);
    }
    let bad = lines.iter().filter(|line| !is_good(line)).count();
    println!(
        "autobahn: {} cases, {bad} failed or not strict",
        lines.len()
    );
    let file = repository().join("conformance/results/autobahn.txt");
    if updates {
        fs::write(&file, lines.join("\n") + "\n")?;
        return Ok(());
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    let expected: Vec<&str> = expected.lines().collect();
    let differing: Vec<&String> = lines
        .iter()
        .filter(|line| !expected.contains(&line.as_str()))
        .collect();
    for line in &differing {
        println!("  {line}");
    }
    if !differing.is_empty() || expected.len() != lines.len() {
        bail!("the results differ from {}", file.display());
    }
    Ok(())
}

fn is_good(line: &str) -> bool {
    line.ends_with(" OK") || line.ends_with(" INFORMATIONAL")
}

/// Returns a Python 2.7 interpreter that works: pyenv may put a `python2.7` into `PATH` that only
/// prints how to install one. Returns `None` if there is none.
fn python() -> Option<PathBuf> {
    let versions = || {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        fs::read_dir(home.join(".pyenv/versions")).ok()
    };
    let is_2_7 = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with("2.7"))
    };
    let kept = versions().into_iter().flatten();
    let kept = kept
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_2_7)
        .map(|version| version.join("bin/python"));
    find("python2.7")
        .into_iter()
        .chain(kept)
        .find(|python| succeeds(Command::new(python).args(["-m", "pip", "--version"])))
}

fn install(python: &Path, tools: &Path) -> Result<()> {
    let packages = tools.join("packages");
    // This file is created last, so its presence shows that the installation is complete.
    let mark = packages.join("zope/__init__.py");
    if mark.exists() {
        return Ok(());
    }
    progress("installing the Autobahn suite from PyPI (a minute, only once)");
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ])
        .arg(&packages)
        .arg(SUITE)
        .stderr(Stdio::null()))?;
    // Without this file, Python 2 does not find subpackages of `zope` here.
    fs::write(&mark, "")?;
    Ok(())
}

fn run_cases(python: &Path, tools: &Path, name: &str, url: &str) -> Result<Vec<String>> {
    let reports = tools.join("reports").join(name);
    let spec = json!({
        "outdir": reports,
        "servers": [{ "agent": name, "url": url }],
        "cases": CASES,
        "exclude-cases": [],
        "exclude-agent-cases": {},
    });
    let spec_file = tools.join(format!("{name}.json"));
    fs::write(&spec_file, spec.to_string())?;
    let script = "import sys; sys.argv[0] = 'wstest'; \
                  from autobahntestsuite.wstest import run; run()";
    let log = fs::File::create(tools.join(format!("{name}.log")))?;
    let mut command = Command::new(python);
    command
        .args(["-c", script, "-m", "fuzzingclient", "-s"])
        .arg(&spec_file)
        .env("PYTHONPATH", tools.join("packages"))
        .current_dir(tools)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log);
    run(&mut command)?;
    let index = fs::read_to_string(reports.join("index.json"))
        .context("the suite has left no report; see its log in .samovar/tools/autobahn")?;
    results(name, &serde_json::from_str(&index)?)
}

/// Returns a line `NAME CASE BEHAVIOR` for each case, sorted. The behaviour at the closing
/// handshake is appended if it differs.
fn results(name: &str, index: &Value) -> Result<Vec<String>> {
    let cases = index[name]
        .as_object()
        .context("a report about the server")?;
    let mut results: Vec<(Vec<u32>, String)> = cases
        .iter()
        .map(|(case, result)| {
            let numbers = case
                .split('.')
                .map(|number| number.parse().unwrap_or_default());
            let text = |key: &str| result[key].as_str().unwrap_or("?").to_owned();
            let (behavior, at_close) = (text("behavior"), text("behaviorClose"));
            let behavior = match at_close.as_str() {
                "OK" => behavior,
                at_close if at_close == behavior => behavior,
                at_close => format!("{behavior}, closes {at_close}"),
            };
            (numbers.collect(), format!("{name} {case} {behavior}"))
        })
        .collect();
    results.sort();
    Ok(results.into_iter().map(|(_, line)| line).collect())
}

/// Starts the echo server; returns its port.
fn start_server() -> Result<(Process, u16)> {
    let programs = build_as_tested(&["--example", "websocket_echo"])?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut command = Command::new(programs.join("examples/websocket_echo"));
    // The server exits at the end of its standard input, which `Process` keeps open.
    let server = Process::spawn(command.arg(address.to_string()).stdin(Stdio::piped()));
    eventually("the echo server listens", || {
        TcpStream::connect(address).is_ok()
    });
    Ok((server, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_become_lines_in_the_order_of_cases() {
        let result =
            |behavior: &str, close: &str| json!({ "behavior": behavior, "behaviorClose": close });
        let index = json!({ "x": {
            "1.1.10": result("OK", "OK"),
            "1.1.2": result("NON-STRICT", "OK"),
            "7.1.6": result("INFORMATIONAL", "INFORMATIONAL"),
            "2.1": result("OK", "FAILED"),
        } });
        assert_eq!(
            results("x", &index).unwrap(),
            [
                "x 1.1.2 NON-STRICT",
                "x 1.1.10 OK",
                "x 2.1 OK, closes FAILED",
                "x 7.1.6 INFORMATIONAL"
            ]
        );
        assert!(is_good("x 7.1.6 INFORMATIONAL") && !is_good("x 2.1 OK, closes FAILED"));
    }
}
