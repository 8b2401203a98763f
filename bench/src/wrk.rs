//! Many small requests on many connections: wrk with a script of our own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::figures::{Quantity, Values, to_f64};
use crate::process::Server;

/// wrk script that requests random targets from a file and prints its results as JSON. It renders
/// requests once in advance, so that the client's share stays small.
const SCRIPT: &str = r#"
local threads = 0
function setup(thread) threads = threads + 1; thread:set("number", threads) end
function init(args)
  math.randomseed(number * 7919)
  requests = {}
  for path in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", path) end
end
function request() return requests[math.random(#requests)] end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"p50":%d,"p99":%d,"status":%d,"broken":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
"#;

/// Results of wrk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    requests: u64,
    duration: Duration,
    p50: Duration,
    p99: Duration,
}

/// List of request targets, and the status that their responses must have.
#[derive(Debug)]
pub(crate) struct Load {
    script: PathBuf,
    targets: PathBuf,
    found: bool,
    takes_zstd: bool,
}

impl Load {
    /// Writes `targets` below `scratch`, in place of those of an earlier load. `found` is the
    /// expected status: 200 if true, else 404. `takes_zstd`: the client accepts zstd.
    pub(crate) fn new(
        scratch: &Path,
        targets: &[String],
        found: bool,
        takes_zstd: bool,
    ) -> Result<Self> {
        let script = scratch.join("load.lua");
        fs::write(&script, SCRIPT)?;
        let file = scratch.join("targets");
        fs::write(&file, targets.join("\n") + "\n")?;
        Ok(Self {
            script,
            targets: file,
            found,
            takes_zstd,
        })
    }

    /// Runs wrk for `seconds` on `connections` connections; returns rate, latencies and CPU time of
    /// the server. Fails if wrk fails, the server broke a connection, or a status differs.
    pub(crate) fn measure(
        &self,
        server: &Server,
        connections: u32,
        seconds: f64,
    ) -> Result<Values> {
        let before = server.cpu();
        let seen = self.run(server, connections, seconds)?;
        let cpu = server.cpu().saturating_sub(before);
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        let requests = to_f64(seen.requests);
        Ok(Values::from([
            (Quantity::Rate, requests / seen.duration.as_secs_f64()),
            (Quantity::ServerCpuUs, micros(cpu) / requests),
            (Quantity::P50Us, micros(seen.p50)),
            (Quantity::P99Us, micros(seen.p99)),
        ]))
    }

    fn run(&self, server: &Server, connections: u32, seconds: f64) -> Result<Seen> {
        // wrk accepts whole seconds only.
        let seconds = seconds.max(1.0).round();
        let threads = connections.min(2);
        let mut command = Command::new("wrk");
        if self.takes_zstd {
            command.args(["-H", "Accept-Encoding: zstd"]);
        }
        let done = command
            .args(["-t", &threads.to_string(), "-c", &connections.to_string()])
            .args(["-d", &format!("{seconds}s"), "--timeout", "10s", "-s"])
            .arg(&self.script)
            .arg(format!("http://{}", server.address))
            .arg("--")
            .arg(&self.targets)
            .output()
            .context("cannot start wrk")?;
        let said = String::from_utf8_lossy(&done.stdout);
        let (seen, others, broken) = parse(&said).with_context(|| {
            format!(
                "output of wrk: {said}{}",
                String::from_utf8_lossy(&done.stderr)
            )
        })?;
        let wrong = if self.found {
            others
        } else {
            seen.requests.abs_diff(others)
        };
        // Tolerance: wrk samples the counts of responses and of statuses at slightly different
        // moments.
        if wrong > u64::from(connections) || broken > 0 {
            bail!(
                "{wrong} answers with a wrong status, {broken} broken, of {}",
                seen.requests
            );
        }
        if seen.requests == 0 {
            bail!("no answer in {seconds} s");
        }
        Ok(seen)
    }
}

/// Parses wrk's results, the number of statuses of 400 and above, and that of broken connections.
fn parse(said: &str) -> Option<(Seen, u64, u64)> {
    let line = said.lines().find(|line| line.starts_with('{'))?;
    let value: Value = serde_json::from_str(line).ok()?;
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let seen = Seen {
        requests: number("requests")?,
        duration: Duration::from_micros(number("micros")?),
        p50: Duration::from_micros(number("p50")?),
        p99: Duration::from_micros(number("p99")?),
    };
    Some((seen, number("status")?, number("broken")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_the_script_are_parsed() {
        let said = "Running 1s test\n\n{\"requests\":10,\"micros\":1000,\"p50\":5,\"p99\":9,\
                    \"status\":2,\"broken\":1}\n";
        let (seen, others, broken) = parse(said).unwrap();
        assert_eq!((seen.requests, others, broken), (10, 2, 1));
        assert_eq!(seen.p99, Duration::from_micros(9));
        assert!(parse("unable to connect").is_none());
    }
}
