//! Defines the measured figures: values of quantities, by row, server and round.

use std::collections::BTreeMap;

use anyhow::ensure;

/// A measured quantity. Tables list quantities in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quantity {
    /// CPU time of the server's processes per response, in microseconds.
    ServerCpuUs,
    /// Responses per second.
    Rate,
    P50Us,
    P99Us,
    /// CPU time of the server's processes per GB of NAR, in seconds.
    ServerCpuPerGb,
    /// CPU time of the server's processes and of the client per GB of NAR, in seconds.
    BothCpuPerGb,
    /// Megabytes of NAR per second.
    MbPerSecond,
    /// CPU time of the server's processes per uploaded path, in microseconds.
    ServerCpuPerPath,
    /// Uploaded paths per second.
    PathsPerSecond,
    /// Milliseconds from the request to the end of the response, or from exec to the first
    /// response.
    WallMs,
    /// CPU time of the server's processes in total, in milliseconds.
    ServerCpuMs,
    ClientCpuMs,
    /// Memory of the server's processes in MiB; a shared page counts once (PSS).
    PssMib,
    /// Memory of the server's processes in MiB; a shared page counts for each process (RSS).
    RssMib,
    /// Peak memory (RSS) of the server's processes, in MiB.
    PeakMib,
    /// Peak memory (RSS) of the client, in MiB.
    ClientPeakMib,
    /// Number of requests of the client.
    Requests,
    /// Number of system calls per response.
    Calls,
    /// CPU time of the server per WebSocket message, in microseconds.
    ServerCpuPerMessage,
    /// CPU time of the server per receiver of a broadcast message, in microseconds.
    ServerCpuPerDelivery,
    /// Anonymous memory per idle connection, in KiB.
    KibPerConnection,
    /// Number of requests that got another response than 200, or whose connection was closed.
    Refused,
    /// Number of requests that got no response in time.
    Unanswered,
}

impl Quantity {
    /// Returns the title for tables, the name for use in a sentence, and the unit, to be appended
    /// to a value.
    pub(crate) fn texts(self) -> [&'static str; 3] {
        match self {
            Self::ServerCpuUs => ["Server CPU per response, µs", "server CPU", " µs"],
            Self::Rate => ["Responses per second", "rate", ""],
            Self::P50Us => ["Latency, p50, µs", "p50", " µs"],
            Self::P99Us => ["Latency, p99, µs", "p99", " µs"],
            Self::ServerCpuPerGb => ["Server CPU per GB, s", "server CPU", " s/GB"],
            Self::BothCpuPerGb => [
                "Server and client CPU per GB, s",
                "server and client CPU",
                " s/GB",
            ],
            Self::MbPerSecond => ["MB of NAR per second", "rate", ""],
            Self::ServerCpuPerPath => ["Server CPU per path, µs", "server CPU", " µs"],
            Self::PathsPerSecond => ["Paths per second", "rate", ""],
            Self::WallMs => ["Time, ms", "time", " ms"],
            Self::ServerCpuMs => ["Server CPU, ms", "server CPU", " ms"],
            Self::ClientCpuMs => ["Client CPU, ms", "client CPU", " ms"],
            Self::PssMib => ["Memory (PSS), MiB", "memory", " MiB"],
            Self::RssMib => ["Memory (RSS), MiB", "memory", " MiB"],
            Self::PeakMib => ["Peak memory (RSS), MiB", "memory", " MiB"],
            Self::ClientPeakMib => ["Peak memory of the client (RSS), MiB", "memory", " MiB"],
            Self::Requests => ["Requests", "requests", ""],
            Self::Calls => ["System calls per response", "system calls", ""],
            Self::ServerCpuPerMessage => ["Server CPU per message, µs", "server CPU", " µs"],
            Self::ServerCpuPerDelivery => ["Server CPU per delivery, µs", "server CPU", " µs"],
            Self::KibPerConnection => ["Memory per connection, KiB", "memory", " KiB"],
            Self::Refused => ["Requests without 200", "refusals", ""],
            Self::Unanswered => ["Requests without a response after 30 s", "silence", ""],
        }
    }

    /// Returns whether a larger value is better.
    pub(crate) fn is_more_better(self) -> bool {
        matches!(self, Self::Rate | Self::MbPerSecond | Self::PathsPerSecond)
    }
}

/// The values of all quantities that one measurement gives.
pub(crate) type Values = BTreeMap<Quantity, f64>;

/// A section of the report: a group of rows with the same quantities.
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
    /// Rows that compare HTTP engines instead of caches.
    Engine,
    Uploads,
}

/// The description of a section in the report.
pub(crate) struct About {
    pub(crate) section: Section,
    pub(crate) title: &'static str,
    /// How the rows of this section are measured.
    pub(crate) remark: &'static str,
    /// The quantities that rows of this section may have, the most important first.
    pub(crate) quantities: &'static [Quantity],
}

/// All sections, in the order of the report.
pub(crate) static SECTIONS: [About; 10] = [
    About {
        section: Section::NixServeNg,
        title: "nix-serve-ng's benchmark",
        remark: "As defined in its README: one connection, one request at a time. A NAR is \
                 requested by the URL in its narinfo, and the time includes the request for the \
                 narinfo. Client and server share one core. A figure is for one iteration: one or \
                 ten requests, as the row states.",
        quantities: &[Quantity::WallMs, Quantity::ServerCpuUs],
    },
    About {
        section: Section::Requests,
        title: "Small responses",
        remark: "`cN`: N connections with one request at a time on each. In `c1`, client and \
                 server share one core. Narinfos are requested in random order.",
        quantities: &[
            Quantity::ServerCpuUs,
            Quantity::Rate,
            Quantity::P50Us,
            Quantity::P99Us,
        ],
    },
    About {
        section: Section::Bulk,
        title: "NARs",
        remark: "`cN`: N connections. *first*: the first request for the tree after a start; CPU \
                 time counts until the server is idle again. *again*: later requests. Sizes are \
                 those of the uncompressed NAR, also if it is sent with zstd.",
        quantities: &[
            Quantity::ServerCpuPerGb,
            Quantity::BothCpuPerGb,
            Quantity::MbPerSecond,
        ],
    },
    About {
        section: Section::Once,
        title: "Each path requested once",
        remark: "25 connections, the maximum of Nix; CPU time per path, and the time for all. \
                 *cold*: the server has just started; where it signs, CPU time counts from exec. \
                 The mass query requests the narinfos of a closure of 10,000 paths in the big \
                 store; *one answer*: one request `GET /closure/…`.",
        quantities: &[Quantity::ServerCpuUs, Quantity::WallMs],
    },
    About {
        section: Section::Copy,
        title: "A real client",
        remark: "`nix copy --from` into an empty store on tmpfs.",
        quantities: &[
            Quantity::WallMs,
            Quantity::ServerCpuMs,
            Quantity::ClientCpuMs,
        ],
    },
    About {
        section: Section::Start,
        title: "Start",
        remark: "From exec to the first correct narinfo; CPU time until the server is idle.",
        quantities: &[Quantity::WallMs, Quantity::ServerCpuMs],
    },
    About {
        section: Section::Memory,
        title: "Memory",
        remark: "All processes of a server. *after the load*: after all other rows were measured.",
        quantities: &[Quantity::PssMib, Quantity::RssMib, Quantity::PeakMib],
    },
    About {
        section: Section::Calls,
        title: "System calls",
        remark: "One connection, counted by strace in a separate run.",
        quantities: &[Quantity::Calls],
    },
    About {
        section: Section::Engine,
        title: "HTTP engines",
        remark: "`cN`: N connections. *One core*: a server with one thread shares the core with \
                 its client.",
        quantities: &[
            Quantity::ServerCpuUs,
            Quantity::ServerCpuPerGb,
            Quantity::ServerCpuPerMessage,
            Quantity::ServerCpuPerDelivery,
            Quantity::KibPerConnection,
            Quantity::PeakMib,
            Quantity::Refused,
            Quantity::Unanswered,
            Quantity::Rate,
            Quantity::P50Us,
            Quantity::P99Us,
        ],
    },
    About {
        section: Section::Uploads,
        title: "Uploads",
        remark: "Each measurement starts with an empty cache and after a `sync`. CPU time counts \
                 until the server is idle again. *N at once*: N keep-alive connections send the \
                 requests of `nix copy`. `file://`: `nix copy` into a directory, without a \
                 server. Samovar verifies all files and flushes them to disk before it \
                 acknowledges a path; nginx and `file://` do neither.",
        quantities: &[
            Quantity::WallMs,
            Quantity::PathsPerSecond,
            Quantity::ServerCpuPerGb,
            Quantity::ServerCpuPerPath,
            Quantity::Requests,
            Quantity::PeakMib,
            Quantity::ClientPeakMib,
        ],
    },
];

/// The reason why a server has no figure in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The row does not apply to the server, for this reason.
    NotAsked(String),
    /// The server failed or responded incorrectly, with this error.
    Failed(String),
}

/// Turns a measurement's error into a gap in the table, so that the run continues.
pub(crate) fn failed<T>(result: anyhow::Result<T>) -> Result<T, Gap> {
    result.map_err(|error| Gap::Failed(format!("{error:#}")))
}

/// All measurements of one server in one row of the report.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Cell {
    /// The values of each round.
    pub(crate) rounds: Vec<Values>,
    pub(crate) gap: Option<Gap>,
}

impl Cell {
    /// Adds the outcome of a round. After a gap, further rounds are ignored.
    pub(crate) fn add(&mut self, outcome: Result<Values, Gap>) {
        match outcome {
            Ok(values) => self.rounds.push(values),
            Err(gap) => self.gap = Some(gap),
        }
    }

    /// Returns the median over the rounds; `None` if there is a gap.
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

/// A row of the report. It has one cell per server, in the order of the servers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) section: Section,
    pub(crate) cells: Vec<Cell>,
}

/// The role of a server in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Samovar; the summary shows its ratios to the others.
    Ours,
    Peer,
    /// nginx with static files, which performs no look-ups.
    Anchor,
    /// A server that parses nothing: the lower bound of the cost.
    Floor,
}

/// The results of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Results {
    /// Name and role of each server, in the order of the cells.
    pub(crate) servers: Vec<(String, Part)>,
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// Fails if a measurement failed.
    pub(crate) fn ensure_complete(&self) -> anyhow::Result<()> {
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        let failed = cells.filter(|cell| matches!(cell.gap, Some(Gap::Failed(_))));
        let failed_count = failed.count();
        ensure!(failed_count == 0, "{failed_count} measurements failed");
        Ok(())
    }

    /// Returns the index of the first server with this role; `None` if no server has it.
    pub(crate) fn first(&self, part: Part) -> Option<usize> {
        self.servers.iter().position(|(_, of)| *of == part)
    }

    /// Returns the best median among the servers with this role, and the server's name; `None` if
    /// none of them has a figure.
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

/// Converts a count without rounding: all counts and sizes here are far below 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a cell with one round of these values; a cell with a gap if there are no values.
    pub(crate) fn cell(values: &[(Quantity, f64)]) -> Cell {
        let gap = values
            .is_empty()
            .then(|| Gap::NotAsked("no command with {key}".into()));
        Cell {
            rounds: vec![values.iter().copied().collect()],
            gap,
        }
    }

    /// Creates results with every kind of gap.
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
    fn each_quantity_has_a_median_of_its_own() {
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
    fn the_best_server_has_the_largest_rate_or_the_smallest_cost() {
        let results = with_gaps();
        let best = |quantity| results.best(&results.rows[0], quantity, Part::Peer);
        assert_eq!(best(Quantity::ServerCpuUs), Some((50.0, "other<1>")));
        assert_eq!(best(Quantity::Calls), None);
        assert_eq!(results.first(Part::Anchor), Some(2));
    }
}
