#!/usr/bin/env python3
"""What a measurement costs: `rows` of a store alone, and `answers` to POST /measurement, as it is and as
it was in 2017. Each has a database of its own, which is gone afterwards; all are measured in turn, round
by round, since what else the machine does changes. Processor time is the kernel's for all threads of the
server and of PostgreSQL, writers in the background included."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parents[2] / "rig"))

import parts  # noqa: E402
import postgresql  # noqa: E402
from started import Rig, free_port, say  # noqa: E402

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# What is measured, and its store.
SERVERS = [("replay-2017", "PostgreSQL"), ("serve", "PostgreSQL"), ("serve", "SQLite")]
# Rows of a transaction, kettles, transactions: a second or so each.
SIZES = [
    (1, 20_000, 2_000), (30, 20_000, 2_000), (300, 20_000, 600), (1000, 20, 400), (1000, 20_000, 400),
    (8000, 20, 60), (8000, 20_000, 60),
]


def children(pid):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
        except (OSError, ValueError):
            continue
        if stat.rsplit(") ", 1)[1].split()[1] == str(pid):
            yield int(entry.name)


def cpu(pid):
    """Seconds that a process and its children have run, those included that have ended."""
    seconds = 0
    for one in [pid, *children(pid)]:
        try:
            threads = list(pathlib.Path(f"/proc/{one}/task").iterdir())
            seconds += sum(int((it / "schedstat").read_text().split()[0]) for it in threads) / 1e9
        except OSError:
            continue
    ended = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[13:15]
    return seconds + sum(map(int, ended)) * TICK_S


def pid_of(rig, name):
    return next((it.process.pid for it in rig.children if it.name == name), None)


def database(rig, store):
    return postgresql.start(rig) if store == "PostgreSQL" else rig.data / "kettles.sqlite"


def answers(arguments, binary, mode, store):
    with tempfile.TemporaryDirectory(prefix="kettles-cost-") as data, Rig(pathlib.Path(data)) as rig:
        url = f"http://127.0.0.1:{free_port()}"
        where = database(rig, store)
        command = [binary, mode, "--port", url.rsplit(":", 1)[1], "--database", where]
        server = rig.start("server", command)
        rig.answers(server, f"{url}/statistics")
        wrk = [
            "wrk", "-t1", f"-c{arguments.connections}", "-s", BENCH / "measurement.lua",
            f"{url}/measurement",
        ]
        # Kettles become known, and statements are prepared.
        subprocess.run([*wrk, "-d2"], check=True, capture_output=True)
        pids = [server.process.pid, pid_of(rig, "postgresql")]
        before = [cpu(pid) if pid else 0 for pid in pids]
        said = subprocess.run(
            [*wrk, f"-d{arguments.seconds}"], check=True, capture_output=True, text=True
        ).stdout
        after = [cpu(pid) if pid else 0 for pid in pids]
        if "Non-2xx" in said or "Socket errors" in said:
            raise SystemExit(f"kettles have failed\n{said}")
        count = int(re.search(r"(\d+) requests in", said)[1])
        own, of_database = ((b - a) * 1e6 / count for a, b in zip(before, after))
        print(f"| `{mode}`, {store} | {count / arguments.seconds:,.0f} | {own:.1f} | "
              f"{of_database:.1f} | {own + of_database:.1f} |", flush=True)
        return (mode, store), own + of_database


def rows(arguments, binary, batch, devices, transactions):
    with tempfile.TemporaryDirectory(prefix="kettles-cost-") as data, Rig(pathlib.Path(data)) as rig:
        where = database(rig, arguments.store)
        command = [
            binary, "measure", "--database", where, "--batch", str(batch), "--devices", str(devices),
            "--rows", str(batch * transactions),
        ]
        if pid := pid_of(rig, "postgresql"):
            command += ["--postmaster", str(pid)]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        found = re.search(r": (\d+) a second, ([\d.]+) us .* ([\d.]+) us", said.stderr + said.stdout)
        rate, own, of_database = (float(it) for it in found.groups())
        print(f"| {batch:,} | {devices:,} | {rate:,.0f} | {own:.1f} | {of_database:.1f} | "
              f"{own + of_database:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rows", "answers"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=6, help="how long answers are asked for")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--store", choices=["PostgreSQL", "SQLite"], default="PostgreSQL",
                        help="of rows")
    parser.add_argument("--binary", type=pathlib.Path, action="append",
                        help="a built kettles, again for another one beside it")
    arguments = parser.parse_args()
    binaries = arguments.binary or [parts.program("kettles")]
    if arguments.what == "rows":
        print("| rows of a transaction | kettles | rows/s | ours, µs | the database's, µs | a row, µs |")
        print("|---:|---:|---:|---:|---:|---:|", flush=True)
    else:
        print("| server | answers/s | the server's, µs | the database's, µs | an answer, µs |")
        print("|---|---:|---:|---:|---:|", flush=True)
    for number in range(arguments.rounds):
        if arguments.what == "rows":
            for size in SIZES:
                for binary in binaries:
                    rows(arguments, binary, *size)
            continue
        for binary in binaries:
            costs = dict(answers(arguments, binary, *it) for it in SERVERS)
            first = costs.pop(SERVERS[0])
            for (_, store), cost in costs.items():
                say(f"round {number + 1}, {store}: {first / cost:.1f} times less than in 2017")


main()
