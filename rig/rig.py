#!/usr/bin/env python3
"""Starts a server, a load generator and all monitoring, and prints their addresses.

    rig.py up kettles --users 20000        kettles server, Prometheus, exporters, Locust
    rig.py up kettles --postgresql         the same with a PostgreSQL of its own
    rig.py up kettles --postgresql --servers 2   two servers behind haproxy
    rig.py up replay-2017 --locust as-2017 the server and the load of 2017
    rig.py up cache --store /              the binary cache of a store, with the same monitoring
    rig.py check kettles                   starts everything briefly; checks that every panel has data
    rig.py story                           loads both servers to saturation; prints their USE tables
    rig.py board                           writes the dashboards of a running rig as one HTML page
    rig.py down                            stops what another `up` has started

Parts that are not installed are left out, with a message. Everything started is stopped at the end.
Grafana is started if installed; this is untested, for lack of a package.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import board
import parts
import postgresql
import story
from started import SIGNALS, Rig, owner_of, say, write_owner

DATA = parts.ROOT / ".samovar/rig"
SAMPLE = parts.ROOT / ".samovar/sample"
PORTS = ["server", "admin", "prometheus", "grafana", "locust", "node", "process", "postgres", "haproxy"]
STARTS = {
    "kettles": parts.start_kettles,
    "replay-2017": parts.start_replay,
    "cache": parts.start_cache,
}
BOARDS = {
    "kettles": ["kettles", "original", "use"],
    "replay-2017": ["original", "use"],
    "cache": ["cache", "use"],
}


# Interval at which Prometheus scrapes, unless an option sets it.
SCRAPE_S = 10
# Describes a running rig, in its data folder, for `board`.
RUNNING = "running.json"


def rows(arguments):
    """Whether a row of the dashboard `use` applies to this target."""
    about = {"kettles": {"Kettles"}, "replay-2017": set(), "cache": {"Cache"}}[arguments.target]
    has_postgresql = str(arguments.database).startswith("postgres")
    return about | ({"PostgreSQL"} if has_postgresql else set())


def up(rig, arguments):
    if arguments.postgresql:
        arguments.database = postgresql.start(rig)
    target = STARTS[arguments.target](rig, arguments)
    rig.add("server", arguments.target, target)
    if arguments.bottleneck == "database":
        postgresql.slow_down(rig)
    parts.start_exporters(rig, arguments)
    if arguments.locust != "none":
        parts.start_locust(rig, arguments, target)
    else:
        rig.absent.add("locust_")
    parts.start_process_exporter(rig, arguments)
    prometheus = parts.start_prometheus(rig, arguments)
    parts.start_grafana(rig, arguments, prometheus)
    running = {"prometheus": prometheus, "target": arguments.target, "scrape": arguments.scrape}
    (rig.data / RUNNING).write_text(json.dumps(running))
    rig.table()
    return prometheus


def check(rig, arguments, prometheus):
    """Checks that every panel has data, once a minute of rates exists."""
    command = [sys.executable, parts.RIG / "check_dashboards.py", "--live", prometheus]
    for row in {"Kettles", "PostgreSQL", "Cache", "Upstreams"} - rows(arguments):
        command += ["--without", row]
    for prefix in rig.absent:
        command += ["--without-metrics", prefix]
    end = time.monotonic() + arguments.seconds
    while True:
        time.sleep(5)
        said = subprocess.run(command + BOARDS[arguments.target], capture_output=True, text=True)
        if said.returncode == 0 or time.monotonic() > end:
            print(said.stdout + said.stderr, end="")
            return said.returncode


def down():
    for path in DATA.glob("*/pid"):
        if pid := owner_of(path):
            os.kill(pid, signal.SIGTERM)
            say(f"sent SIGTERM to {pid}")


def write_board(arguments):
    """Writes the dashboards of the rig that was started last, or of a given Prometheus."""
    found = {}
    if not arguments.prometheus:
        running = [path.parent / RUNNING for path in DATA.glob("*/pid") if owner_of(path)]
        running = sorted((it for it in running if it.exists()), key=lambda it: it.stat().st_mtime)
        if not running:
            say("no rig runs: start one with `rig.py up`, or give the URL of a Prometheus with --prometheus")
            return 2
        found = json.loads(running[-1].read_text())
    prometheus = (arguments.prometheus or found["prometheus"]).rstrip("/")
    names = BOARDS.get(arguments.target or found.get("target"), [])
    scrape = arguments.scrape or found.get("scrape", SCRAPE_S)
    if fault := board.write(prometheus, names, arguments.minutes, scrape, arguments.output):
        say(fault)
        return 2
    print(arguments.output.absolute())
    return 0


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """Prints one line; the usage is too long to be read with each error."""
        self.exit(2, f"rig: {message}; `rig.py --help` lists the options\n")


def port(text):
    """Parses `NAME=PORT`."""
    name, equals, number = text.partition("=")
    if not equals or name not in PORTS:
        raise argparse.ArgumentTypeError(f"write NAME=PORT, where NAME is one of {', '.join(PORTS)}")
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
        raise argparse.ArgumentTypeError(f"the port of {name} is {number!r}, not a number from 1 to 65535")
    return name, int(number)


def executable(text):
    path = pathlib.Path(text)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} is not an executable file")
    return path.absolute()


def count(text):
    """Parses a number of at least one."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def parse():
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["up", "check", "story", "board", "down"])
    parser.add_argument("target", choices=list(STARTS), nargs="?")
    parser.add_argument("--postgresql", action="store_true",
                        help="start a PostgreSQL for kettles; replay-2017 always has one")
    parser.add_argument("--database", help="store of kettles [SQLite in the data folder]")
    parser.add_argument("--server-processes", type=count, default=1,
                        help="processes of the kettles server; needs PostgreSQL [1]")
    parser.add_argument("--servers", type=count, default=1,
                        help="kettles servers, behind haproxy if there are several; needs PostgreSQL [1]")
    parser.add_argument("--bottleneck", choices=["database"],
                        help="database: a trigger makes the PostgreSQL of the rig the bottleneck")
    parser.add_argument("--store", type=pathlib.Path, default=SAMPLE, help="Nix store of the cache [the sample store]")
    parser.add_argument("--users", type=count, default=1000, help="simulated users of Locust [1000]")
    parser.add_argument("--spawn-rate", type=count, default=200, help="users started per second [200]")
    parser.add_argument("--locust", choices=["honest", "as-2017", "none"], default="honest",
                        help="behaviour of the users; none: no load is generated [honest]")
    parser.add_argument("--processes", type=count, help="processes of Locust [one per 10,000 users]")
    parser.add_argument("--locust-program", type=executable, help="Locust executable [installed with pip]")
    parser.add_argument("--binary", type=executable,
                        help="server executable [from release/ in CARGO_TARGET_DIR or target]")
    parser.add_argument("--data", type=pathlib.Path, help="folder for data and logs [a new one in .samovar/rig]")
    parser.add_argument("--port", action="append", default=[], type=port, metavar="NAME=PORT",
                        help=f"port of {', '.join(PORTS[:-1])} or {PORTS[-1]} [a free one]")
    parser.add_argument("--scrape", type=count, help="scrape interval in seconds [10; 2 for check]")
    parser.add_argument("--seconds", type=count, default=120, help="time limit of check [120]")
    parser.add_argument("--prometheus", metavar="URL", help="Prometheus that board reads [that of the running rig]")
    parser.add_argument("--minutes", type=count, default=15, help="minutes that board shows [15]")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("board.html"),
                        help="file that board writes [board.html]")
    parser.add_argument("--grafana-home", default="/usr/share/grafana")
    arguments = parser.parse_args()
    if arguments.action in ("up", "check") and not arguments.target:
        parser.error(f"{arguments.action} needs a target: {', '.join(STARTS)}")
    if arguments.database and (arguments.postgresql or arguments.target == "cache"):
        parser.error("--database applies to kettles only, and excludes --postgresql")
    if arguments.action != "board":
        arguments.scrape = arguments.scrape or (2 if arguments.action == "check" else SCRAPE_S)
    arguments.store = arguments.store.resolve()
    if arguments.servers > 1 and arguments.server_processes > 1:
        parser.error("--servers excludes --server-processes")
    arguments.postgresql |= arguments.target == "replay-2017" and not arguments.database
    has_postgresql = arguments.postgresql or str(arguments.database).startswith("postgres")
    if arguments.servers > 1 and (arguments.target == "cache" or not has_postgresql):
        parser.error("--servers needs kettles with --postgresql: SQLite has only one writer")
    if arguments.bottleneck and (arguments.target != "kettles" or not arguments.postgresql):
        parser.error("--bottleneck database needs kettles with --postgresql")
    return arguments


def interrupt(*_):
    raise KeyboardInterrupt


def run(arguments, data):
    if arguments.action == "story":
        return story.tell(arguments, data)
    with Rig(data) as rig:
        prometheus = up(rig, arguments)
        if arguments.action == "check":
            return check(rig, arguments, prometheus)
        say(f"running; logs and data are in {data}; stop with Ctrl-C")
        rig.watch()


def main():
    arguments = parse()
    if arguments.action == "down":
        return down()
    if arguments.action == "board":
        return write_board(arguments)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    # Each user takes a descriptor at both ends.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        DATA.mkdir(parents=True, exist_ok=True)
        data = arguments.data or pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=DATA))
        data.mkdir(parents=True, exist_ok=True)
        write_owner(data / "pid")
    except OSError as error:
        say(f"cannot create the data folder: {error}")
        return 2
    try:
        return run(arguments, data.resolve())
    except OSError as error:
        say(f"cannot start: {error}")
        return 2
    except subprocess.CalledProcessError as error:
        # The command has printed the reason.
        say(f"failed: {' '.join(map(str, error.cmd))}")
        return 2
    except KeyboardInterrupt:
        say("ended")
    finally:
        (data / "pid").unlink()
        if arguments.action != "up" and not arguments.data:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
