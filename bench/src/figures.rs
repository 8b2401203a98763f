//! What was measured: numbers of a row, of a server, of every round.

use std::collections::BTreeMap;

/// One kind of number. The order is that of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quantity {
    /// CPU of the server's processes for one answer, in microseconds.
    ServerCpuUs,
    /// Answers per second.
    Rate,
    P50Us,
    P99Us,
    /// CPU of the server's processes for a GB of NAR, in seconds.
    ServerCpuPerGb,
    /// The same, with the client's.
    BothCpuPerGb,
    /// Megabytes of NAR per second.
    MbPerSecond,
    /// From the question to the end of the answer, or from exec to the first answer.
    WallMs,
    /// CPU of the server's processes for the whole of it.
    ServerCpuMs,
    ClientCpuMs,
    /// Memory of the server's processes; what they share counts once.
    PssMib,
    /// The same as the system's tools show it: what they share counts for each.
    RssMib,
    /// The most that it ever was.
    PeakMib,
    /// System calls for one answer.
    Calls,
}

impl Quantity {
    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ServerCpuUs => "Server CPU per answer, µs",
            Self::Rate => "Answers per second",
            Self::P50Us => "Latency, p50, µs",
            Self::P99Us => "Latency, p99, µs",
            Self::ServerCpuPerGb => "Server CPU per GB of NAR, s",
            Self::BothCpuPerGb => "Server and client CPU per GB of NAR, s",
            Self::MbPerSecond => "MB of NAR per second",
            Self::WallMs => "Time, ms",
            Self::ServerCpuMs => "Server CPU, ms",
            Self::ClientCpuMs => "Client CPU, ms",
            Self::PssMib => "Memory (PSS), MiB",
            Self::RssMib => "Memory (RSS), MiB",
            Self::PeakMib => "Largest memory so far, MiB",
            Self::Calls => "System calls per answer",
        }
    }

    /// In the middle of a sentence.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::ServerCpuUs | Self::ServerCpuPerGb | Self::ServerCpuMs => "server CPU",
            Self::Rate | Self::MbPerSecond => "rate",
            Self::P50Us => "p50",
            Self::P99Us => "p99",
            Self::BothCpuPerGb => "server and client CPU",
            Self::WallMs => "time",
            Self::ClientCpuMs => "client CPU",
            Self::PssMib | Self::RssMib | Self::PeakMib => "memory",
            Self::Calls => "system calls",
        }
    }

    /// For programs.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::ServerCpuUs => "server_cpu_us",
            Self::Rate => "rate",
            Self::P50Us => "p50_us",
            Self::P99Us => "p99_us",
            Self::ServerCpuPerGb => "server_cpu_s_per_gb",
            Self::BothCpuPerGb => "both_cpu_s_per_gb",
            Self::MbPerSecond => "mb_per_s",
            Self::WallMs => "wall_ms",
            Self::ServerCpuMs => "server_cpu_ms",
            Self::ClientCpuMs => "client_cpu_ms",
            Self::PssMib => "pss_mib",
            Self::RssMib => "rss_mib",
            Self::PeakMib => "peak_mib",
            Self::Calls => "calls",
        }
    }

    /// Whether more of it is better.
    pub(crate) fn is_more_better(self) -> bool {
        matches!(self, Self::Rate | Self::MbPerSecond)
    }
}

/// One measurement.
pub(crate) type Values = BTreeMap<Quantity, f64>;

/// Rows that belong together and have the same quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    NixServeNg,
    Requests,
    Bulk,
    Once,
    Copy,
    Start,
    Memory,
    Calls,
}

impl Section {
    /// In the order of the report.
    pub(crate) const ALL: [Self; 8] = [
        Self::NixServeNg,
        Self::Requests,
        Self::Bulk,
        Self::Once,
        Self::Copy,
        Self::Start,
        Self::Memory,
        Self::Calls,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NixServeNg => "nix-serve-ng's benchmark",
            Self::Requests => "Small answers",
            Self::Bulk => "NARs",
            Self::Once => "Each path asked for once",
            Self::Copy => "A real client",
            Self::Start => "Start",
            Self::Memory => "Memory",
            Self::Calls => "System calls",
        }
    }

    /// How its figures come about.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::NixServeNg => {
                "As its README defines them: one question at a time on one connection; a NAR is \
                 asked for by the narinfo's URL, and the narinfo is part of the time. Client and \
                 server on one core, a line is one iteration."
            }
            Self::Requests => {
                "`cN`: N connections with one question each. `c1` has client and server on one \
                 core. Narinfos are random ones of all there are."
            }
            Self::Bulk => {
                "`cN`: N connections. *first*: the first question for the tree after a start, CPU \
                 counted until the server is at rest again; *again*: it has answered it before. \
                 With zstd accepted a GB is one of the NAR, whatever went over the wire."
            }
            Self::Once => {
                "25 connections, as many as Nix opens; every path once, CPU per answer, time for \
                 all. *cold*: just started; where signatures are made all CPU since exec counts. \
                 The mass query is for a closure of 10,000 paths in the big store; *one answer*: \
                 one question and one connection, `GET /closure/…`."
            }
            Self::Copy => "`nix copy --from` into an empty store on tmpfs.",
            Self::Start => "From exec to the first right narinfo; CPU until the server is at rest.",
            Self::Memory => {
                "All processes of a server. *after the load*: when all rows are measured."
            }
            Self::Calls => "One connection, counted by strace in a run of its own.",
        }
    }

    /// What its rows may have, the one that matters most first.
    pub(crate) fn quantities(self) -> &'static [Quantity] {
        match self {
            Self::NixServeNg => &[Quantity::WallMs, Quantity::ServerCpuUs],
            Self::Requests => &[
                Quantity::ServerCpuUs,
                Quantity::Rate,
                Quantity::P50Us,
                Quantity::P99Us,
            ],
            Self::Bulk => &[
                Quantity::ServerCpuPerGb,
                Quantity::BothCpuPerGb,
                Quantity::MbPerSecond,
            ],
            Self::Once => &[Quantity::ServerCpuUs, Quantity::WallMs],
            Self::Copy => &[
                Quantity::WallMs,
                Quantity::ServerCpuMs,
                Quantity::ClientCpuMs,
            ],
            Self::Start => &[Quantity::WallMs, Quantity::ServerCpuMs],
            Self::Memory => &[Quantity::PssMib, Quantity::RssMib, Quantity::PeakMib],
            Self::Calls => &[Quantity::Calls],
        }
    }
}

/// Why a server has no figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    /// It was not asked, and why.
    NotAsked(String),
    /// It was asked, and did not answer as it should.
    Failed(String),
}

/// What one server did in one row.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Cell {
    /// A measurement for each round.
    pub(crate) rounds: Vec<Values>,
    pub(crate) gap: Option<Gap>,
}

impl Cell {
    /// Adds the outcome of a round. After a gap there is nothing more to add.
    pub(crate) fn add(&mut self, outcome: Result<Values, Gap>) {
        match outcome {
            Ok(values) => self.rounds.push(values),
            Err(gap) => self.gap = Some(gap),
        }
    }

    /// The median of its rounds, if all of them went well.
    pub(crate) fn median(&self, quantity: Quantity) -> Option<f64> {
        if self.gap.is_some() {
            return None;
        }
        let of_round = |values: &Values| values.get(&quantity).copied();
        let mut values: Vec<f64> = self.rounds.iter().filter_map(of_round).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

/// One row: a cell for each server, in their order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) section: Section,
    pub(crate) cells: Vec<Cell>,
}

/// What a server is in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The first one named: its ratios to the others are the summary.
    Ours,
    Peer,
    /// nginx, which looks nothing up.
    Anchor,
}

/// Everything the report is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Results {
    /// Name and part of each server.
    pub(crate) servers: Vec<(String, Part)>,
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// Where the server with this part stands first.
    pub(crate) fn first(&self, part: Part) -> Option<usize> {
        self.servers.iter().position(|(_, of)| *of == part)
    }

    /// The best median among the servers with `part`, and whose it is.
    pub(crate) fn best(&self, row: &Row, quantity: Quantity, part: Part) -> Option<(f64, &str)> {
        let medians = self.servers.iter().zip(&row.cells);
        let of_part = medians.filter(|((_, of), _)| *of == part);
        let found =
            of_part.filter_map(|((name, _), cell)| Some((cell.median(quantity)?, name.as_str())));
        if quantity.is_more_better() {
            found.max_by(|one, other| one.0.total_cmp(&other.0))
        } else {
            found.min_by(|one, other| one.0.total_cmp(&other.0))
        }
    }
}

/// Counts and sizes here are far below 2⁵³, so nothing is lost.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cell with these values in its only round, or with a gap.
    pub(crate) fn cell(values: &[(Quantity, f64)]) -> Cell {
        let gap = values
            .is_empty()
            .then(|| Gap::NotAsked("no command with {key}".into()));
        Cell {
            rounds: vec![values.iter().copied().collect()],
            gap,
        }
    }

    /// A report with everything that may be missing.
    pub(crate) fn with_gaps() -> Results {
        let row = |name: &str, section, cells| Row {
            name: name.into(),
            section,
            cells,
        };
        let us = |value| {
            cell(&[
                (Quantity::ServerCpuUs, value),
                (Quantity::Rate, 1e6 / value),
            ])
        };
        let gb = |value| cell(&[(Quantity::ServerCpuPerGb, value)]);
        let failed = Cell {
            rounds: Vec::new(),
            gap: Some(Gap::Failed("status 500 & <worse>".into())),
        };
        Results {
            servers: vec![
                ("samovar".into(), Part::Ours),
                ("other<1>".into(), Part::Peer),
                ("nginx".into(), Part::Anchor),
            ],
            rows: vec![
                row(
                    "narinfo c64",
                    Section::Requests,
                    vec![us(5.0), us(50.0), us(8.0)],
                ),
                row(
                    "signed c64",
                    Section::Requests,
                    vec![us(6.0), us(4.0), cell(&[])],
                ),
                row(
                    "absent c64",
                    Section::Requests,
                    vec![failed.clone(), us(4.0), us(0.0)],
                ),
                row("tree", Section::Bulk, vec![gb(0.5), failed, cell(&[])]),
                row(
                    "nobody",
                    Section::Start,
                    vec![cell(&[]), cell(&[]), cell(&[])],
                ),
            ],
        }
    }

    #[test]
    fn medians_are_taken_quantity_by_quantity() {
        let round =
            |rate, cpu| Values::from([(Quantity::Rate, rate), (Quantity::ServerCpuUs, cpu)]);
        let mut cell = Cell::default();
        for values in [round(1.0, 9.0), round(3.0, 7.0), round(2.0, 8.0)] {
            cell.add(Ok(values));
        }
        assert_eq!(cell.median(Quantity::Rate), Some(2.0));
        assert_eq!(cell.median(Quantity::ServerCpuUs), Some(8.0));
        assert_eq!(cell.median(Quantity::Calls), None);
        cell.add(Err(Gap::Failed("status 500".into())));
        assert_eq!(
            cell.median(Quantity::Rate),
            None,
            "a failed round spoils the row"
        );
    }

    #[test]
    fn the_best_is_the_most_or_the_least() {
        let results = with_gaps();
        let best = |quantity| results.best(&results.rows[0], quantity, Part::Peer);
        assert_eq!(best(Quantity::ServerCpuUs), Some((50.0, "other<1>")));
        assert_eq!(best(Quantity::Calls), None);
        assert_eq!(results.first(Part::Anchor), Some(2));
    }
}
