//! Summarises how Samovar compares with the best peer in each row, and where it loses.

use std::fmt::Write as _;

use crate::figures::{Part, Quantity, Results, Row};
use crate::table::number;

/// Quantities that can be the cost of a row. The first one that the row has is used.
const COSTS: [Quantity; 9] = [
    Quantity::ServerCpuUs,
    Quantity::ServerCpuPerGb,
    Quantity::ServerCpuPerPath,
    Quantity::ServerCpuMs,
    Quantity::PssMib,
    Quantity::Calls,
    Quantity::ServerCpuPerMessage,
    Quantity::ServerCpuPerDelivery,
    Quantity::KibPerConnection,
];

/// Quantities that can be the speed of a row. The first one that the row has is used.
const SPEEDS: [Quantity; 4] = [
    Quantity::Rate,
    Quantity::MbPerSecond,
    Quantity::PathsPerSecond,
    Quantity::WallMs,
];

/// Ratios from 1 to this value are shown as 1.00 and count as a tie.
const TIE: f64 = 1.005;

/// The ratio of our figure to another server's, in the direction in which less than 1 is better for
/// us.
#[derive(Debug, Clone, PartialEq)]
struct Ratio {
    row: String,
    quantity: Quantity,
    value: f64,
    other: String,
}

/// Renders the table of ratios and the list of losses; returns an empty text if there is no peer.
pub(crate) fn render(results: &Results) -> String {
    if results.first(Part::Peer).is_none() {
        return String::new();
    }
    let ours = results
        .servers
        .iter()
        .filter(|(_, part)| *part == Part::Ours);
    let name: Vec<&str> = ours.map(|(name, _)| name.as_str()).collect();
    let name = name.join("/");
    let mut lines = Vec::new();
    let mut ratios = Vec::new();
    for row in &results.rows {
        if let Some(line) = Line::new(results, row) {
            ratios.extend(line.to_peer.iter().flatten().cloned());
            lines.push(line);
        }
    }
    let worst = ratios.iter().map(|ratio| ratio.value).fold(0.0, f64::max);
    let mut text = format!(
        "### {name} beside the best peer of each row\n\nA ratio below 1 means that {name} \
         is better. *Cost* is server CPU time; in the rows of memory and system calls, it is the \
         memory or the number of calls. *Speed* is the rate or the time. The worst ratio is \
         bold.\n\n\
         | | cost: {name} | best peer | ÷ peer | ÷ nginx | speed ÷ peer | p50 ÷ peer \
         | p99 ÷ peer |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for line in &lines {
        text.push_str(&line.render(worst));
    }
    text.push('\n');
    text.push_str(&losses(&name, &ratios));
    text
}

/// A line of the summary: one row of the report.
struct Line<'row> {
    row: &'row str,
    ours: f64,
    unit: Quantity,
    peer: Option<(f64, String)>,
    to_anchor: Option<f64>,
    /// Ratios to the best peer: cost, speed, p50 and p99; `None` if one of the two figures is
    /// missing.
    to_peer: [Option<Ratio>; 4],
}

impl<'row> Line<'row> {
    fn new(results: &Results, row: &'row Row) -> Option<Self> {
        let ours = |quantity| Some(results.best(row, quantity, Part::Ours)?.0);
        let first_of = |quantities: &[Quantity]| {
            let mut found = quantities.iter().copied();
            found.find(|&quantity| ours(quantity).is_some())
        };
        let ratio = |quantity: Option<Quantity>, part| {
            let quantity = quantity?;
            let mine = ours(quantity)?;
            let (theirs, other) = results.best(row, quantity, part)?;
            let (over, under) = if quantity.is_more_better() {
                (theirs, mine)
            } else {
                (mine, theirs)
            };
            // A cost that is too small to measure has no ratio.
            (over > 0.0 && under > 0.0).then(|| Ratio {
                row: row.name.clone(),
                quantity,
                value: over / under,
                other: other.to_owned(),
            })
        };
        let unit = first_of(&COSTS)?;
        let best = results.best(row, unit, Part::Peer);
        Some(Self {
            row: &row.name,
            ours: ours(unit)?,
            unit,
            peer: best.map(|(value, name)| (value, name.to_owned())),
            to_anchor: ratio(Some(unit), Part::Anchor).map(|ratio| ratio.value),
            to_peer: [
                ratio(Some(unit), Part::Peer),
                ratio(first_of(&SPEEDS), Part::Peer),
                ratio(Some(Quantity::P50Us), Part::Peer),
                ratio(Some(Quantity::P99Us), Part::Peer),
            ],
        })
    }

    fn render(&self, worst: f64) -> String {
        let mut text = format!(
            "| {} | {}{} |",
            self.row,
            number(self.ours),
            self.unit.texts()[2]
        );
        match &self.peer {
            Some((value, name)) => write!(text, " {} ({name}) |", number(*value)).ok(),
            None => write!(text, " – |").ok(),
        };
        let [cost, rest @ ..] = &self.to_peer;
        let anchor = self
            .to_anchor
            .map_or("–".into(), |value| format!("{value:.2}"));
        write!(text, " {} | {anchor} |", shown(cost.as_ref(), worst)).ok();
        for ratio in rest {
            write!(text, " {} |", shown(ratio.as_ref(), worst)).ok();
        }
        text.push('\n');
        text
    }
}

fn shown(ratio: Option<&Ratio>, worst: f64) -> String {
    match ratio {
        None => "–".into(),
        Some(ratio) if ratio.value >= worst => format!("**{:.2}**", ratio.value),
        Some(ratio) => format!("{:.2}", ratio.value),
    }
}

/// Lists the ratios that show that a peer is better, the worst first.
fn losses(name: &str, ratios: &[Ratio]) -> String {
    let is_behind = |ratio: &&Ratio| ratio.value >= TIE;
    let mut behind: Vec<&Ratio> = ratios.iter().filter(is_behind).collect();
    behind.sort_by(|one, other| other.value.total_cmp(&one.value));
    let mut text = format!(
        "{name} is behind a peer in {} of {} ratios",
        behind.len(),
        ratios.len()
    );
    text.push_str(if behind.is_empty() { ".\n" } else { ":\n\n" });
    for ratio in behind {
        writeln!(
            text,
            "* {}: {}, {:.2} beside {}",
            ratio.row,
            ratio.quantity.texts()[1],
            ratio.value,
            ratio.other
        )
        .ok();
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::with_gaps;

    #[test]
    fn the_worst_row_is_marked_and_gaps_are_left_out() {
        let text = render(&with_gaps());
        for expected in [
            "| narinfo c64 | 5.00 µs | 50.0 (other<1>) | 0.10 | 0.62 | 0.10 | – | – |",
            "| signed c64 | 6.00 µs | 4.00 (other<1>) | **1.50** | – | **1.50** | – | – |",
            "| tree | 0.50 s/GB | – | – | – | – | – | – |",
            "behind a peer in 2 of 4 ratios",
            "* signed c64: server CPU, 1.50 beside other<1>",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains("absent c64"), "{text}");
    }

    #[test]
    fn without_a_peer_there_is_no_summary() {
        let mut results = with_gaps();
        results.servers[1].1 = Part::Anchor;
        assert_eq!(render(&results), "");
    }
}
