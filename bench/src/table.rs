//! The results as Markdown.

use std::fmt::Write as _;

use crate::process::Server;
use crate::rows::{Figure, Results, Row};

/// The server that all others are compared with, if it ran.
const REFERENCE: &str = "nginx";

/// All tables.
pub(crate) fn render(servers: &[Server], results: &Results) -> String {
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    let small = |row: &Row| !row.is_bulk();
    let bulk = Row::is_bulk;
    let per_gb = |micros: f64, figure: &Figure| micros / 1e6 / (figure.body_len / 1e9);
    [
        table("Requests per second", &names, results, small, |f| f.rate),
        table("Server CPU per request, µs", &names, results, small, |f| {
            f.server_cpu_us
        }),
        table("Latency, p50, µs", &names, results, small, |f| f.p50_us),
        table("Latency, p99, µs", &names, results, small, |f| f.p99_us),
        table("MB per second", &names, results, bulk, |f| {
            f.rate * f.body_len / 1e6
        }),
        table("Server CPU per GB, s", &names, results, bulk, |f| {
            per_gb(f.server_cpu_us, f)
        }),
        table(
            "Server and client CPU per GB, s",
            &names,
            results,
            bulk,
            |f| per_gb(f.server_cpu_us + f.client_cpu_us, f),
        ),
    ]
    .concat()
}

/// One table: a line for each row, a column for each server, in parentheses the ratio to nginx.
fn table(
    title: &str,
    names: &[&str],
    results: &Results,
    wanted: impl Fn(&Row) -> bool,
    value: impl Fn(&Figure) -> f64,
) -> String {
    let lines: Vec<_> = results.iter().filter(|(row, _)| wanted(row)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let reference = names.iter().position(|name| *name == REFERENCE);
    // A String never fails to take text.
    let mut text = format!("**{title}**\n\n| | {} |\n|---|", names.join(" | "));
    text.push_str(&"---:|".repeat(names.len()));
    text.push('\n');
    for (row, figures) in lines {
        let anchor = reference.and_then(|at| figures.get(at)).map(&value);
        write!(text, "| {} |", row.name).ok();
        for (at, figure) in figures.iter().enumerate() {
            let value = value(figure);
            write!(text, " {}", number(value)).ok();
            if let Some(anchor) = anchor.filter(|&anchor| anchor > 0.0 && Some(at) != reference) {
                write!(text, " ({:.2}x)", value / anchor).ok();
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Three digits that count, thousands parted.
fn number(value: f64) -> String {
    if value < 9.995 {
        return format!("{value:.2}");
    }
    if value < 99.95 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.345, 9.99, 12.34, 99.96, 1234.5, 1_234_567.0].map(number);
        assert_eq!(
            numbers,
            ["0.00", "0.34", "9.99", "12.3", "100", "1,234", "1,234,567"]
        );
    }
}
