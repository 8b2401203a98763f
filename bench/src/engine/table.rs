//! Measurements, rendered as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::contender::Kind;

/// Unit of a row's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    MicrosPerRequest,
    SecondsPerGigabyte,
    MicrosPerMessage,
    MicrosPerDelivery,
    KibibytesPerConnection,
    Mebibytes,
    PartOfLimit,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::MicrosPerRequest => "µs CPU/request",
            Self::SecondsPerGigabyte => "s CPU/GB",
            Self::MicrosPerMessage => "µs CPU/message",
            Self::MicrosPerDelivery => "µs CPU/delivery",
            Self::KibibytesPerConnection => "KiB/connection",
            Self::Mebibytes => "MiB",
            Self::PartOfLimit => "% of the limit",
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Cell {
    /// Cost in the unit of the row.
    pub(crate) cost: f64,
    /// Rate per second; 0 if not measured.
    pub(crate) rate: f64,
    /// Latencies in microseconds; 0 if not measured.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Rows with the measurements of each server.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<(String, Unit)>,
    cells: BTreeMap<(usize, Kind), Vec<Option<Cell>>>,
}

impl Table {
    /// Creates a table with these rows.
    pub(crate) fn new(rows: &[(String, Unit)]) -> Self {
        Self {
            rows: rows.to_vec(),
            cells: BTreeMap::new(),
        }
    }

    /// Adds a measurement; `None` if the server failed.
    pub(crate) fn add(&mut self, row: usize, kind: Kind, cell: Option<Cell>) {
        self.cells.entry((row, kind)).or_default().push(cell);
    }

    /// Returns the median of each figure separately; an error if the server failed in any round.
    fn median(&self, row: usize, kind: Kind) -> Option<Result<Cell, Failed>> {
        let cells = self.cells.get(&(row, kind))?;
        let cells: Option<Vec<Cell>> = cells.iter().copied().collect();
        let Some(cells) = cells else {
            return Some(Err(Failed));
        };
        let of = |figure: fn(&Cell) -> f64| {
            let mut values: Vec<f64> = cells.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        Some(Ok(Cell {
            cost: of(|cell| cell.cost),
            rate: of(|cell| cell.rate),
            p50_us: of(|cell| cell.p50_us),
            p99_us: of(|cell| cell.p99_us),
        }))
    }
}

/// The server failed in a round.
#[derive(Debug, Clone, Copy)]
struct Failed;

/// Renders costs with ratios, then rates and latencies.
pub(crate) fn render(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        costs(&mut text, table);
        rates(&mut text, table);
    }
    text
}

fn head(text: &mut String, first: &[&str], last: &[&str]) {
    let kinds = Kind::ALL.map(Kind::name);
    let names: Vec<&str> = first.iter().chain(&kinds).chain(last).copied().collect();
    // Writing to a `String` never fails.
    writeln!(text, "| {} |", names.join(" | ")).ok();
    let rule: String = names.iter().map(|_| "---|").collect();
    writeln!(text, "|{rule}").ok();
}

fn costs(text: &mut String, table: &Table) {
    let ratios = [
        "inline ÷ floor",
        "worker ÷ hyper",
        "best of ours ÷ best rival",
    ];
    head(text, &["row", "unit"], &ratios);
    for (row, (name, unit)) in table.rows.iter().enumerate() {
        let cost = |kind| table.median(row, kind)?.ok().map(|cell| cell.cost);
        let best = |kinds: &[Kind]| {
            kinds
                .iter()
                .filter_map(|&kind| cost(kind))
                .min_by(f64::total_cmp)
        };
        write!(text, "| {name} | {} |", unit.name()).ok();
        for kind in Kind::ALL {
            let shown = match table.median(row, kind) {
                None => String::new(),
                Some(Err(Failed)) => "failed".into(),
                Some(Ok(cell)) => number(cell.cost),
            };
            write!(text, " {shown} |").ok();
        }
        let rivals = [Kind::Hyper, Kind::Axum, Kind::Actix, Kind::Nginx];
        for (ours, theirs) in [
            (cost(Kind::Inline), cost(Kind::Floor)),
            (cost(Kind::Worker), cost(Kind::Hyper)),
            (best(&[Kind::Inline, Kind::Worker]), best(&rivals)),
        ] {
            let ratio = ours
                .zip(theirs)
                .map(|(ours, theirs)| format!("{:.2}", ours / theirs));
            write!(text, " {} |", ratio.unwrap_or_default()).ok();
        }
        writeln!(text).ok();
    }
    writeln!(text).ok();
}

fn rates(text: &mut String, table: &Table) {
    writeln!(
        text,
        "Per second; median and 99th percentile of the latency:\n"
    )
    .ok();
    head(text, &["row"], &[]);
    for (row, (name, _)) in table.rows.iter().enumerate() {
        write!(text, "| {name} |").ok();
        for kind in Kind::ALL {
            let shown = match table.median(row, kind) {
                Some(Ok(cell)) if cell.rate > 0.0 && cell.p99_us > 0.0 => {
                    let (p50, p99) = (latency(cell.p50_us), latency(cell.p99_us));
                    format!("{}; {p50}, {p99}", number(cell.rate))
                }
                Some(Ok(cell)) if cell.rate > 0.0 => number(cell.rate),
                _ => String::new(),
            };
            write!(text, " {shown} |").ok();
        }
        writeln!(text).ok();
    }
    writeln!(text).ok();
}

fn latency(micros: f64) -> String {
    if micros < 1000.0 {
        format!("{micros:.0} µs")
    } else {
        format!("{} ms", number(micros / 1000.0))
    }
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let mut table = Table::new(&[("text".into(), Unit::MicrosPerRequest)]);
        for cost in [9.0, 2.0, 3.0] {
            let cell = Cell {
                cost,
                ..Cell::default()
            };
            table.add(0, Kind::Worker, Some(cell));
            table.add(
                0,
                Kind::Hyper,
                Some(Cell {
                    cost: 2.0 * cost,
                    ..cell
                }),
            );
        }
        table.add(0, Kind::Actix, None);
        let text = render(&[table]);
        let expected =
            "| text | µs CPU/request |  |  | 3.00 | 6.00 |  | failed |  |  | 0.50 | 0.50 |";
        assert_eq!(text.lines().nth(2), Some(expected));
    }
}
