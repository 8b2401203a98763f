//! `samovar-bench sockets`: holds many WebSockets, on several server processes that share a port.
//!
//! A process may have a limited number of descriptors, so there are several servers and several
//! clients. Each client connects to another address of the loopback interface, because a pair of
//! addresses has only some 28,000 ports.

mod client;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{free_port, procfs};

use crate::arguments::Arguments;
use crate::engine::{build_ours, programs};
use crate::figures::{Quantity, to_f64};
use crate::machine;
use crate::process::Server;
use crate::table::number;

/// Number of sockets of a process. The kernel spreads them by a hash, so not all processes have the
/// same number, and samovar-http accepts 16,384 connections by default.
const PROCESS_SOCKET_COUNT: usize = 15_000;

/// The number of sockets for which the report predicts the memory.
const MILLION: usize = 1_000_000;

/// Runs the measurement, or one of its clients.
pub(crate) fn run(options: &Arguments) -> Result<()> {
    let count = options.sockets;
    if let Some(address) = options.client {
        return client::run(address, count);
    }
    let is_built = options.is_check && programs().examples.join("samovar").exists();
    if !machine::is_inside_namespace() && !is_built {
        build_ours()?;
    }
    machine::enter_network_namespace();
    let load_before = machine::load();
    let process_count = count.div_ceil(PROCESS_SOCKET_COUNT).max(2);
    let port = free_port();
    let servers = Servers::start(process_count, port)?;
    let before = servers.state();
    let mut lines = vec![
        Line::new("sockets, all open", count.to_string()),
        Line::new("processes of the server", process_count.to_string()),
    ];
    let mut clients = open(&servers, &before, count, port, &mut lines)?;
    for (order, name) in [
        ("text", "echo on each socket"),
        ("ping", "ping on each socket"),
    ] {
        crate::progress(name);
        ask(&servers, &mut clients, order, name, &mut lines)?;
    }
    let rest = Duration::from_secs_f64(options.seconds);
    let held = hold(&servers, &mut clients, rest, &mut lines)?;
    lines.extend(memory(&before, &held, count, process_count));
    let how = format!("{process_count} processes for the clients");
    let machine = machine::describe(&[], &how, &load_before);
    println!("{machine}\n| | |\n|---|---:|");
    for Line { name, value } in lines {
        println!("| {name} | {value} |");
    }
    Ok(())
}

/// A line of the report.
struct Line {
    name: String,
    value: String,
}

impl Line {
    fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

/// Opens the sockets.
fn open(
    servers: &Servers,
    before: &State,
    count: usize,
    port: u16,
    lines: &mut Vec<Line>,
) -> Result<Clients> {
    crate::progress(&format!("opening {count} sockets"));
    let started = Instant::now();
    let process_count = servers.0.len();
    let clients = Clients::start(process_count, count, port)?;
    let time = started.elapsed().as_secs_f64();
    let cpu = (servers.cpu() - before.cpu).as_secs_f64() / to_f64(count as u64);
    lines.extend([
        Line::new(
            "sockets of a process, least and most",
            servers.spread(before.descriptor_count),
        ),
        Line::new("time to open them, s", number(time)),
        Line::new("server CPU to open one, µs", number(cpu * 1e6)),
    ]);
    Ok(clients)
}

/// Sends a message on each socket and waits for the answers. Fails if one is missing.
fn ask(
    servers: &Servers,
    clients: &mut Clients,
    order: &str,
    name: &str,
    lines: &mut Vec<Line>,
) -> Result<()> {
    let (started, cpu_before) = (Instant::now(), servers.cpu());
    let answers = clients.ask(order)?;
    let time = started.elapsed().as_secs_f64();
    let answered: f64 = answers.iter().map(|it| float(it, "answered")).sum();
    let cpu = (servers.cpu() - cpu_before).as_secs_f64() / answered;
    let worst_ms = |name| {
        let of_clients = answers.iter().map(|it| float(it, name) / 1e3);
        number(of_clients.fold(0.0, f64::max))
    };
    lines.extend([
        Line::new(
            format!("{name}: time until all are answered, s"),
            number(time),
        ),
        Line::new(format!("{name}: server CPU of one, µs"), number(cpu * 1e6)),
        Line::new(
            format!("{name}: latency, p50 and p99 of the slowest client, ms"),
            format!("{}, {}", worst_ms("p50_us"), worst_ms("p99_us")),
        ),
    ]);
    Ok(())
}

/// Leaves the sockets idle for this time. Fails if one is closed.
fn hold(
    servers: &Servers,
    clients: &mut Clients,
    time: Duration,
    lines: &mut Vec<Line>,
) -> Result<State> {
    let seconds = number(time.as_secs_f64());
    crate::progress(&format!("holding them for {seconds} s"));
    let cpu_before = servers.cpu();
    std::thread::sleep(time);
    let held = servers.state();
    let states = clients.ask("state")?;
    let sum = |name| states.iter().map(|it| float(it, name)).sum::<f64>();
    ensure!(
        sum("closed") < 1.0,
        "the servers closed {} sockets",
        sum("closed")
    );
    let cpu = (held.cpu - cpu_before).as_secs_f64() / time.as_secs_f64();
    lines.extend([
        Line::new(
            format!("CPU of all servers while idle for {seconds} s, % of a core"),
            number(cpu * 100.0),
        ),
        Line::new("pings of the servers, all answered", number(sum("pings"))),
    ]);
    Ok(held)
}

/// Returns the lines about memory, with those for a million sockets.
fn memory(before: &State, held: &State, count: usize, process_count: usize) -> [Line; 6] {
    let gib = |len: f64| number(len / f64::from(1 << 30));
    let kib = |len: f64| number(len / 1024.0);
    let mib = |len: f64| number(len / f64::from(1 << 20));
    let count = to_f64(count as u64);
    let own = (held.pss - before.pss).max(0.0) / count;
    let kernel = (held.kernel - before.kernel).max(0.0) / 2.0 / count;
    let process = before.pss / to_f64(process_count as u64);
    let million_processes = to_f64(MILLION.div_ceil(PROCESS_SOCKET_COUNT) as u64);
    let million = to_f64(MILLION as u64);
    let to_million = format!(
        "a million, in the servers: {million_processes} processes × {} MiB + 1,000,000 × {} KiB, \
         in GiB",
        mib(process),
        kib(own)
    );
    [
        Line::new(
            "memory (PSS) of all servers without sockets, MiB",
            mib(before.pss),
        ),
        Line::new(
            "memory (PSS) of all servers with the sockets, MiB",
            mib(held.pss),
        ),
        Line::new("memory of a socket in the server, KiB", kib(own)),
        Line::new(
            "memory of one end of a socket in the kernel, KiB",
            kib(kernel),
        ),
        Line::new(to_million, gib(million_processes * process + million * own)),
        Line::new(
            format!(
                "a million, in the kernel: 1,000,000 × {} KiB, in GiB",
                kib(kernel)
            ),
            gib(million * kernel),
        ),
    ]
}

/// Resources in use at a moment.
struct State {
    /// CPU time of all servers so far.
    cpu: Duration,
    /// Memory of all servers (PSS), in bytes.
    pss: f64,
    /// Memory of the kernel's objects, for both ends of the sockets, in bytes.
    kernel: f64,
    /// Number of descriptors of the first server.
    descriptor_count: usize,
}

/// The processes of the server.
struct Servers(Vec<Server>);

impl Servers {
    /// Starts `count` servers that share `port`.
    fn start(count: usize, port: u16) -> Result<Self> {
        let program = programs().examples.join("samovar");
        let command = format!("exec {} {port} 1 / --shared", program.display());
        let start = |_| Server::start_command("samovar", &command, port, "/text");
        let servers: Vec<Server> = (0..count).map(start).collect::<Result<_>>()?;
        // A server that listens later than the others would get fewer connections.
        let started = Instant::now();
        while listener_count(port)? < count {
            ensure!(
                started.elapsed() < Duration::from_secs(10),
                "not all servers listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self(servers))
    }

    /// Returns the CPU time of all servers so far.
    fn cpu(&self) -> Duration {
        self.0.iter().map(Server::cpu).sum()
    }

    fn state(&self) -> State {
        let pss_mib = |server: &Server| {
            let memory = server.memory();
            memory.get(&Quantity::PssMib).copied().unwrap_or_default()
        };
        State {
            cpu: self.cpu(),
            pss: self.0.iter().map(pss_mib).sum::<f64>() * f64::from(1 << 20),
            kernel: kernel_memory(),
            descriptor_count: self.descriptor_counts().min().unwrap_or_default(),
        }
    }

    fn descriptor_counts(&self) -> impl Iterator<Item = usize> {
        let processes = self.0.iter().flat_map(Server::processes);
        processes.filter_map(procfs::descriptor_count)
    }

    /// Returns the least and the largest number of sockets of a server, which had
    /// `descriptor_count` descriptors before.
    fn spread(&self, descriptor_count: usize) -> String {
        let least = self.descriptor_counts().min().unwrap_or_default();
        let most = self.descriptor_counts().max().unwrap_or_default();
        let sockets = |count: usize| count.saturating_sub(descriptor_count);
        format!("{}, {}", sockets(least), sockets(most))
    }
}

/// Returns the number of TCP sockets that listen on `port`.
fn listener_count(port: u16) -> Result<usize> {
    let sockets = fs::read_to_string("/proc/net/tcp")?;
    let address = format!(":{port:04X}");
    let listens = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|it| it.ends_with(&address)) && fields.nth(1) == Some("0A")
    };
    Ok(sockets.lines().filter(listens).count())
}

/// Returns the memory of the kernel's objects that it cannot give back, in bytes.
fn kernel_memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("SUnreclaim:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or_default() * 1024.0
}

/// The processes of the clients.
struct Clients(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Clients {
    /// Starts `process_count` clients with `count` sockets together, and waits until all are open.
    fn start(process_count: usize, count: usize, port: u16) -> Result<Self> {
        let mut clients = Self(Vec::new());
        for number in 0..process_count {
            // The first ones take the rest of the division.
            let share = (count + process_count - 1 - number) / process_count;
            let host = Ipv4Addr::new(127, 0, 0, 1 + u8::try_from(number % 250)?);
            let mut client = Command::new(std::env::current_exe()?)
                .args([
                    "sockets",
                    "--client",
                    &SocketAddr::from((host, port)).to_string(),
                ])
                .args(["--sockets", &share.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let orders = client.stdin.take().context("its input")?;
            let answers = client.stdout.take().context("its output")?;
            clients.0.push((client, orders, BufReader::new(answers)));
        }
        clients.answers()?;
        Ok(clients)
    }

    /// Gives all clients an order; returns their answers.
    fn ask(&mut self, order: &str) -> Result<Vec<Value>> {
        for (_, orders, _) in &mut self.0 {
            writeln!(orders, "{order}")?;
        }
        self.answers()
    }

    fn answers(&mut self) -> Result<Vec<Value>> {
        let answer = |(_, _, answers): &mut (Child, ChildStdin, BufReader<ChildStdout>)| {
            let mut line = String::new();
            answers.read_line(&mut line)?;
            serde_json::from_str(&line).context("a client ended early")
        };
        self.0.iter_mut().map(answer).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for (client, ..) in &mut self.0 {
            // It may have ended already.
            client.kill().ok();
            client.wait().ok();
        }
    }
}

fn float(value: &Value, name: &str) -> f64 {
    value.get(name).and_then(Value::as_f64).unwrap_or_default()
}
