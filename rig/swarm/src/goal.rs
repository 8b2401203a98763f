//! Goals: named runs, and the bounds that their results must keep.

use std::time::Duration;

use swarm::Tally;

use crate::report::Taken;

/// Upper bounds of a run. Failures are never allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) p99_ms: Option<f64>,
    /// CPU time of the server per correct response, in microseconds.
    pub(crate) server_us: Option<f64>,
    pub(crate) server_cores: Option<f64>,
}

impl Bounds {
    /// Returns a line for each missed bound.
    pub(crate) fn missed(&self, tally: &Tally, taken: &Taken) -> Vec<String> {
        let mut missed = Vec::new();
        let failures = tally.failures.sum();
        if failures > 0 {
            missed.push(format!("{failures} failures"));
        }
        if tally.answered() == 0 {
            missed.push("no request was answered".to_owned());
        }
        let p99 = Duration::from_micros(tally.latency().value_at_quantile(0.99));
        let p99_ms = Some(p99.as_secs_f64() * 1e3);
        let measured = [
            ("99th percentile of latency, ms", self.p99_ms, p99_ms),
            (
                "server CPU time per response, us",
                self.server_us,
                taken.server_us_per_answer(tally),
            ),
            (
                "CPU cores used by the server",
                self.server_cores,
                taken.server_cores(tally),
            ),
        ];
        for (name, bound, measured) in measured {
            match (bound, measured) {
                (Some(bound), None) => {
                    missed.push(format!("{name}: at most {bound} allowed, but not measured"))
                }
                (Some(bound), Some(measured)) if measured > bound => {
                    missed.push(format!("{name}: {measured:.3}, at most {bound} allowed"));
                }
                _ => {}
            }
        }
        missed
    }
}

/// A named run: the values of all options that are not given, and the bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Number of clients.
    pub(crate) count: usize,
    /// Number of connections; one per client if `None`.
    pub(crate) connections: Option<usize>,
    /// Period of a client, in seconds.
    pub(crate) period_s: f64,
    /// Time within which every client sends once; the whole period if `None`.
    pub(crate) within: Option<Duration>,
    pub(crate) duration_s: f64,
    pub(crate) bounds: Bounds,
}

const NO_BOUNDS: Bounds = Bounds {
    p99_ms: None,
    server_us: None,
    server_cores: None,
};

/// The run of `swarm kettles` without a goal.
pub(crate) const KETTLES: Goal = Goal {
    name: "",
    about: "",
    count: 1_000,
    connections: None,
    period_s: 30.0,
    within: None,
    duration_s: 60.0,
    bounds: NO_BOUNDS,
};

/// The run of `swarm cache`.
pub(crate) const CACHE: Goal = Goal {
    count: 100,
    connections: Some(200),
    period_s: 10.0,
    ..KETTLES
};

/// All goals. Bounds are on CPU time, because wall-clock times mean little on a shared machine.
pub(crate) const GOALS: [Goal; 4] = [
    Goal {
        name: "20k",
        about: "20,000 kettles on 19,000 connections; at most a quarter of a CPU core",
        count: 20_000,
        // Fits into the limit of 20,000 descriptors that some machines impose.
        connections: Some(19_000),
        duration_s: 30.0,
        bounds: Bounds {
            server_cores: Some(0.25),
            ..NO_BOUNDS
        },
        ..KETTLES
    },
    Goal {
        name: "200k",
        about: "the traffic of 200,000 kettles; at most 20 us of CPU time per response",
        count: 200_000,
        connections: Some(4_000),
        duration_s: 30.0,
        bounds: Bounds {
            server_us: Some(20.0),
            ..NO_BOUNDS
        },
        ..KETTLES
    },
    Goal {
        name: "1m",
        about: "the traffic of 1,000,000 kettles; at most 10 us of CPU time per response",
        count: 1_000_000,
        connections: Some(4_000),
        bounds: Bounds {
            server_us: Some(10.0),
            ..NO_BOUNDS
        },
        ..KETTLES
    },
    Goal {
        name: "power-cut",
        about: "15,000 kettles reconnect within a second; p99 at most 5 s",
        count: 15_000,
        within: Some(Duration::from_secs(1)),
        duration_s: 5.0,
        bounds: Bounds {
            p99_ms: Some(5_000.0),
            ..NO_BOUNDS
        },
        ..KETTLES
    },
];
