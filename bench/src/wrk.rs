//! Sends many small requests on many connections, by wrk with a script of our own.

use std::fs;
use std::path::Path;
use std::process::Command;

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

/// Names of the results in the script's JSON. `status` counts the responses with a status of 400 or
/// above.
const RESULTS: [&str; 6] = ["requests", "micros", "p50", "p99", "status", "broken"];

/// A load of requests for random targets from a list, which wrk sends to a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'run> {
    /// Directory for the files that wrk reads; those of an earlier load are overwritten.
    pub(crate) scratch: &'run Path,
    pub(crate) targets: &'run [String],
    /// Expected status of all responses: 200 if true, else 404.
    pub(crate) is_found: bool,
    /// Whether the client accepts zstd.
    pub(crate) takes_zstd: bool,
    /// Maximum number of threads of wrk.
    pub(crate) threads: u32,
}

impl Load<'_> {
    /// Runs wrk for `seconds` on `connections` connections; returns rate, latencies and CPU time of
    /// the server. Fails if wrk fails, the server broke a connection, or a status differs.
    pub(crate) fn measure(
        &self,
        server: &Server,
        connections: u32,
        seconds: f64,
    ) -> Result<Values> {
        let (script, targets) = (self.scratch.join("load.lua"), self.scratch.join("targets"));
        fs::write(&script, SCRIPT)?;
        fs::write(&targets, self.targets.join("\n") + "\n")?;
        // wrk accepts whole seconds only.
        let seconds = seconds.max(1.0).round();
        let threads = connections.min(self.threads);
        let mut command = Command::new("wrk");
        if self.takes_zstd {
            command.args(["-H", "Accept-Encoding: zstd"]);
        }
        command
            .args(["-t", &threads.to_string(), "-c", &connections.to_string()])
            .args(["-d", &format!("{seconds}s"), "--timeout", "10s", "-s"])
            .arg(script)
            .arg(format!("http://{}", server.address))
            .arg("--")
            .arg(targets);
        let before = server.cpu();
        let done = command.output().context("cannot start wrk")?;
        let cpu = server.cpu().saturating_sub(before);
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let results = parse(&said).with_context(|| format!("output of wrk: {said}"))?;
        let [requests, micros, p50, p99, errors, broken] = results;
        let wrong = if self.is_found {
            errors
        } else {
            requests.abs_diff(errors)
        };
        // Tolerance: wrk samples the counts of responses and of statuses at slightly different
        // moments.
        if wrong > u64::from(connections) || broken > 0 {
            bail!("{wrong} responses with a wrong status, {broken} broken, of {requests}");
        }
        if requests == 0 {
            bail!("no response in {seconds} s");
        }
        let count = to_f64(requests);
        Ok(Values::from([
            (Quantity::Rate, count * 1e6 / to_f64(micros)),
            (Quantity::ServerCpuUs, cpu.as_secs_f64() * 1e6 / count),
            (Quantity::P50Us, to_f64(p50)),
            (Quantity::P99Us, to_f64(p99)),
        ]))
    }
}

/// Parses wrk's output. Returns the values of [`RESULTS`]; `None` if one is missing.
fn parse(said: &str) -> Option<[u64; 6]> {
    let line = said.lines().find(|line| line.starts_with('{'))?;
    let value: Value = serde_json::from_str(line).ok()?;
    let mut results = [0; 6];
    for (result, name) in results.iter_mut().zip(RESULTS) {
        *result = value.get(name)?.as_u64()?;
    }
    Some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_the_script_are_parsed() {
        let said = "Running 1s test\n\n{\"requests\":10,\"micros\":1000,\"p50\":5,\"p99\":9,\
                    \"status\":2,\"broken\":1}\n";
        assert_eq!(parse(said), Some([10, 1000, 5, 9, 2, 1]));
        assert_eq!(parse("unable to connect"), None);
    }
}
