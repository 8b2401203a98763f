//! Reports as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use swarm::{Plan, Tally};

/// Resources used by the server and by the generator.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Taken {
    /// CPU time of the server, if its PID is known.
    pub(crate) server_cpu: Option<Duration>,
    pub(crate) server_memory_peak: Option<u64>,
    pub(crate) server_descriptors: Option<usize>,
    /// CPU time of the generator.
    pub(crate) own_cpu: Option<Duration>,
}

impl Taken {
    /// Returns the server's CPU time per correct response, in microseconds.
    pub(crate) fn server_us_per_answer(&self, tally: &Tally) -> Option<f64> {
        Some(self.server_cpu?.as_secs_f64() * 1e6 / count(tally.answered()).max(1.0))
    }

    /// Returns the average number of cores that the server kept busy.
    pub(crate) fn server_cores(&self, tally: &Tally) -> Option<f64> {
        Some(self.server_cpu?.as_secs_f64() / tally.duration.as_secs_f64().max(1e-9))
    }
}

/// Formats the results of one second as one line.
pub(crate) fn progress(now: Duration, second: &Tally) -> String {
    let latency = second.latency();
    let mut line = format!(
        "{:>5.0} s {:>8.0} answers/s  p50 {} p99 {} ms  late p99 {} ms",
        now.as_secs_f64(),
        second.rate(),
        ms(latency.value_at_quantile(0.5)),
        ms(latency.value_at_quantile(0.99)),
        ms(second.late.value_at_quantile(0.99)),
    );
    let failures = second.failures.by_name();
    for (name, count) in failures.iter().filter(|(_, count)| *count > 0) {
        write!(line, "  {name} {count}").unwrap_or_default();
    }
    line
}

/// Renders the report as text.
pub(crate) fn text(plan: &Plan, tally: &Tally, taken: &Taken) -> String {
    let mut text = String::new();
    write(&mut text, plan, tally, taken).unwrap_or_default();
    text
}

fn write(text: &mut String, plan: &Plan, tally: &Tally, taken: &Taken) -> std::fmt::Result {
    writeln!(
        text,
        "{:.1} s, {} of {} connections open at the end, {} reopened",
        tally.duration.as_secs_f64(),
        tally.connections,
        plan.connections,
        tally.reopened
    )?;
    writeln!(
        text,
        "{:<14} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "answers", "a second", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"
    )?;
    for operation in &tally.operations {
        row(text, operation.name, &operation.latency, tally.duration)?;
    }
    row(text, "all", &tally.latency(), tally.duration)?;
    row(text, "sent late by", &tally.late, tally.duration)?;
    let failures = tally.failures.by_name().into_iter();
    let failures = failures.map(|(name, count)| format!("{name} {count}"));
    let failures: Vec<_> = failures.collect();
    writeln!(text, "failures       {}", failures.join(", "))?;
    if let (Some(cores), Some(us)) = (taken.server_cores(tally), taken.server_us_per_answer(tally))
    {
        let mib = taken.server_memory_peak.unwrap_or_default() >> 20;
        let descriptors = taken.server_descriptors.unwrap_or_default();
        writeln!(
            text,
            "server         {cores:.3} cores, {us:.1} us per response, at most {mib} MiB, \
             {descriptors} descriptors"
        )?;
    }
    if let Some(cpu) = taken.own_cpu {
        let cores = cpu.as_secs_f64() / tally.duration.as_secs_f64().max(1e-9);
        let us = cpu.as_secs_f64() * 1e6 / count(tally.answered()).max(1.0);
        writeln!(
            text,
            "generator      {cores:.3} cores, {us:.1} us per response"
        )?;
    }
    Ok(())
}

fn row(
    text: &mut String,
    name: &str,
    latency: &Histogram<u64>,
    duration: Duration,
) -> std::fmt::Result {
    let rate = count(latency.len()) / duration.as_secs_f64().max(1e-9);
    write!(text, "{name:<14} {:>10} {rate:>10.0}", latency.len())?;
    for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
        write!(text, " {:>9}", ms(latency.value_at_quantile(quantile)))?;
    }
    writeln!(text)
}

/// Renders the report as JSON.
pub(crate) fn json(plan: &Plan, tally: &Tally, taken: &Taken) -> Value {
    let operations = tally.operations.iter().map(|operation| {
        let mut value = quantiles(&operation.latency);
        value["name"] = operation.name.into();
        value["body_bytes"] = operation.body_bytes.into();
        value
    });
    let failures = tally.failures.by_name().into_iter();
    let failures: serde_json::Map<_, _> = failures
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "address": plan.address.to_string(),
        "connections_asked": plan.connections,
        "connections": tally.connections,
        "reopened": tally.reopened,
        "seconds": tally.duration.as_secs_f64(),
        "answered": tally.answered(),
        "answers_per_second": tally.rate(),
        "operations": operations.collect::<Vec<_>>(),
        "all": quantiles(&tally.latency()),
        "late": quantiles(&tally.late),
        "failures": failures,
        "server": {
            "cpu_seconds": taken.server_cpu.map(|cpu| cpu.as_secs_f64()),
            "cores": taken.server_cores(tally),
            "cpu_us_per_answer": taken.server_us_per_answer(tally),
            "memory_peak_bytes": taken.server_memory_peak,
            "descriptors": taken.server_descriptors,
        },
        "generator": { "cpu_seconds": taken.own_cpu.map(|cpu| cpu.as_secs_f64()) },
    })
}

/// Returns quantiles in microseconds.
fn quantiles(latency: &Histogram<u64>) -> Value {
    json!({
        "count": latency.len(),
        "p50_us": latency.value_at_quantile(0.5),
        "p90_us": latency.value_at_quantile(0.9),
        "p99_us": latency.value_at_quantile(0.99),
        "p999_us": latency.value_at_quantile(0.999),
        "max_us": latency.max(),
    })
}

/// Formats microseconds as milliseconds with three decimals.
fn ms(latency_us: u64) -> String {
    let ms = count(latency_us) / 1e3;
    match latency_us {
        0..10_000 => format!("{ms:.2}"),
        10_000..100_000 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
fn count(count: u64) -> f64 {
    count as f64
}
