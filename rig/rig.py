#!/usr/bin/env python3
"""Brings up a server under load with all instruments on it, and says where to look.

    rig.py up kettles --users 20000        the kettles' server, Prometheus, exporters, Locust
    rig.py up kettles --postgresql         the same with a PostgreSQL of its own
    rig.py up replay-2017 --locust as-2017 the server as it was, and the load as it was
    rig.py up cache --store /              the binary cache of a store, and the same
    rig.py check kettles                   up for a moment; every panel of the dashboards has data
    rig.py story                           both of them until they break, and what the figures say
    rig.py down                            ends what `up` has started elsewhere

What is not installed is left out, and said. Whatever is started is ended with it, and nothing else.
Grafana is started if there is one; this was never tried, for want of a package.
"""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import parts
import postgresql
import story
from started import SIGNALS, Rig, owner_of, say, write_owner

DATA = parts.ROOT / ".samovar/rig"
SAMPLE = parts.ROOT / ".samovar/sample"
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


def rows(arguments):
    """What of the dashboard `use` is about this target."""
    about = {"kettles": {"Kettles"}, "replay-2017": set(), "cache": {"Cache"}}[arguments.target]
    has_postgresql = str(arguments.database).startswith("postgres")
    return about | ({"PostgreSQL"} if has_postgresql else set())


def up(rig, arguments):
    if arguments.postgresql:
        arguments.database = postgresql.start(rig)
    target = STARTS[arguments.target](rig, arguments)
    rig.add("server", arguments.target, target)
    parts.start_exporters(rig, arguments)
    if arguments.locust != "none":
        parts.start_locust(rig, arguments, target)
    parts.start_process_exporter(rig, arguments)
    prometheus = parts.start_prometheus(rig, arguments)
    parts.start_grafana(rig, arguments, prometheus)
    rig.table()
    return prometheus


def check(arguments, prometheus):
    """Every panel has data, as soon as rates over a minute have."""
    command = [sys.executable, parts.RIG / "check_dashboards.py", "--live", prometheus]
    for row in {"Kettles", "PostgreSQL", "Cache"} - rows(arguments):
        command += ["--without", row]
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
            say(f"told {pid} to end")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["up", "check", "story", "down"])
    parser.add_argument("target", choices=list(STARTS), nargs="?")
    parser.add_argument("--postgresql", action="store_true",
                        help="starts one, for kettles; replay-2017 always has one")
    parser.add_argument("--database", help="of the kettles [SQLite, in the data folder]")
    parser.add_argument("--server-processes", type=int, default=1,
                        help="of the kettles' server, with PostgreSQL: each has files of its own [1]")
    parser.add_argument("--store", type=pathlib.Path, default=SAMPLE, help="[the sample store]")
    parser.add_argument("--users", type=int, default=1000, help="of Locust [1000]")
    parser.add_argument("--spawn-rate", type=int, default=200, help="users a second [200]")
    parser.add_argument("--locust", choices=["honest", "as-2017", "none"], default="honest",
                        help="how its users behave; none: the load comes from elsewhere [honest]")
    parser.add_argument("--processes", type=int, help="of Locust [one for each 10,000 users]")
    parser.add_argument("--locust-program", type=pathlib.Path, help="[installed with pip]")
    parser.add_argument("--binary", type=pathlib.Path, help="the server [target/release]")
    parser.add_argument("--data", type=pathlib.Path, help="[a new folder in .samovar/rig]")
    parser.add_argument("--port", action="append", default=[], metavar="NAME=PORT", help="of server,"
                        " admin, prometheus, grafana, locust, node, process, postgres [free ones]")
    parser.add_argument("--scrape", type=int, help="seconds [10; 2 for check]")
    parser.add_argument("--seconds", type=int, default=120, help="that check may take [120]")
    parser.add_argument("--grafana-home", default="/usr/share/grafana")
    arguments = parser.parse_args()
    if arguments.action in ("up", "check") and not arguments.target:
        parser.error("which target?")
    if arguments.database and (arguments.postgresql or arguments.target == "cache"):
        parser.error("--database is for kettles alone, and stands in the place of --postgresql")
    arguments.scrape = arguments.scrape or (2 if arguments.action == "check" else 10)
    arguments.store = arguments.store.resolve()
    arguments.postgresql |= arguments.target == "replay-2017" and not arguments.database
    return arguments


def interrupt(*_):
    raise KeyboardInterrupt


def run(arguments, data):
    if arguments.action == "story":
        return story.tell(arguments, data)
    with Rig(data) as rig:
        prometheus = up(rig, arguments)
        if arguments.action == "check":
            return check(arguments, prometheus)
        say(f"up; logs and figures are in {data}; Ctrl-C ends all of it")
        rig.watch()


def main():
    arguments = parse()
    if arguments.action == "down":
        return down()
    for number in SIGNALS:
        signal.signal(number, interrupt)
    # Each user is a connection, at both ends.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    DATA.mkdir(parents=True, exist_ok=True)
    data = arguments.data or pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=DATA))
    data.mkdir(parents=True, exist_ok=True)
    write_owner(data / "pid")
    try:
        return run(arguments, data.resolve())
    except KeyboardInterrupt:
        say("ended")
    finally:
        (data / "pid").unlink()
        if arguments.action != "up" and not arguments.data:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
