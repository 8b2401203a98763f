#!/usr/bin/env python3
"""Brings up a server under load with all instruments on it, and says where to look.

    rig.py up kettles --users 20000        the kettles' server, Prometheus, exporters, Locust
    rig.py up cache --store /path          the binary cache of a store, and the same
    rig.py check kettles                   up for a moment; every panel of the dashboards has data
    rig.py down                            ends what `up` has started elsewhere

What is not installed is left out, and said. Whatever is started is ended with it, and nothing else.
Grafana is started if there is one; this was never tried, for want of a package.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

RIG = pathlib.Path(__file__).resolve().parent
ROOT = RIG.parent
LOCUST = "locust==2.47.0"
DATA = ROOT / ".samovar/rig"
SAMPLE = ROOT / ".samovar/sample"
# What was collected in 2017, and pressure.
COLLECTORS = [
    "conntrack", "cpu", "diskstats", "entropy", "filefd", "filesystem", "loadavg", "meminfo", "netdev",
    "netstat", "pressure", "stat", "time", "vmstat",
]


def say(text):
    print(f"rig: {text}", file=sys.stderr, flush=True)


class Rig:
    """Programs that were started, each with a log, and where they answer."""

    def __init__(self, data):
        self.data = data
        self.children = []
        self.rows = []
        self.jobs = {}
        data.mkdir(parents=True, exist_ok=True)

    def start(self, name, command, env=None):
        log = self.data / f"{name}.log"
        # A session of its own: a key that interrupts this program does not reach it twice.
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log.open("w"),
            stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, start_new_session=True,
        )
        self.children.append((name, child, log))
        return child

    def wait(self, name, url, seconds=60):
        """Waits until something answers at `url`, whatever it answers."""
        _, child, log = next(it for it in self.children if it[0] == name)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if child.poll() is not None:
                raise SystemExit(f"rig: {name} has ended\n{log.read_text()[-2000:]}")
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"rig: {name} does not answer at {url}; see {log}")

    def add(self, name, what, url):
        self.rows.append((name, what, url))

    def table(self):
        width = max(len(name) for name, _, _ in self.rows)
        for name, what, url in self.rows:
            print(f"{name:<{width}}  {url:<34} {what}")
        sys.stdout.flush()

    def end(self):
        for _, child, _ in reversed(self.children):
            if child.poll() is None:
                child.terminate()
        for name, child, _ in reversed(self.children):
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                say(f"{name} does not end, and is killed")
                child.kill()
                child.wait()


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def port(arguments, name):
    wanted = dict(it.split("=", 1) for it in arguments.port)
    return int(wanted.get(name, 0)) or free_port()


def program(package):
    """The built binary; built now if it is not there."""
    path = ROOT / "target/release" / package
    if not path.exists():
        say(f"building {package}")
        subprocess.run(
            ["cargo", "build", "--release", "--package", package], cwd=ROOT, check=True
        )
    return path


def start_kettles(rig, arguments):
    at = port(arguments, "server")
    database = arguments.database or rig.data / "kettles.sqlite"
    binary = arguments.binary or program("kettles")
    rig.start("server", [binary, "serve", "--port", at, "--database", database])
    rig.wait("server", f"http://127.0.0.1:{at}/statistics")
    rig.jobs["kettles"] = f"127.0.0.1:{at}"
    rig.add("live", "the live page", f"http://127.0.0.1:{at}/live")
    return f"http://127.0.0.1:{at}"


def start_cache(rig, arguments):
    at, admin = port(arguments, "server"), port(arguments, "admin")
    binary = arguments.binary or program("nix-serve")
    env = {name: "" for name in os.environ if name.startswith("NIX_")}
    rig.start(
        "server",
        [binary, "--listen", f"127.0.0.1:{at}", "--admin", f"127.0.0.1:{admin}",
         "--store", f"local?root={arguments.store}"],
        env,
    )
    rig.wait("server", f"http://127.0.0.1:{at}/nix-cache-info")
    rig.jobs["samovar"] = f"127.0.0.1:{admin}"
    rig.add("status", "the status page", f"http://127.0.0.1:{admin}/status")
    paths = rig.data / "paths.txt"
    if arguments.paths:
        shutil.copy(arguments.paths, paths)
    elif (arguments.store / "sample.json").exists():
        sample = json.loads((arguments.store / "sample.json").read_text())
        paths.write_text("\n".join(sample["graph"]) + "\n")
    else:
        query = ["nix-store", "--store", str(arguments.store), "--query", "--requisites"]
        roots = [str(path) for path in (arguments.store / "nix/store").glob("[!.]*-*")]
        raise SystemExit(
            f"rig: say --paths FILE with what is in it, such as of {query} or of {len(roots)} names"
        )
    return f"http://127.0.0.1:{at}"


def start_exporters(rig, arguments):
    if binary := shutil.which("prometheus-node-exporter"):
        at = port(arguments, "node")
        collect = [f"--collector.{name}" for name in COLLECTORS]
        listen = f"--web.listen-address=127.0.0.1:{at}"
        rig.start("node", [binary, listen, "--collector.disable-defaults", *collect])
        rig.jobs["node"] = f"127.0.0.1:{at}"
    else:
        say("without the machine's figures: prometheus-node-exporter is not installed")
    if binary := shutil.which("prometheus-process-exporter"):
        at = port(arguments, "process")
        names = rig.data / "process.yml"
        listed = ["kettles", "nix-serve", "samovar", "swarm", "locust", "postgres", "prometheus"]
        names.write_text(json.dumps({"process_names": [{"comm": listed}]}))
        listen = f"-web.listen-address=127.0.0.1:{at}"
        rig.start("process", [binary, "-config.path", names, listen])
        rig.jobs["process"] = f"127.0.0.1:{at}"
    else:
        say("without figures of programs: prometheus-process-exporter is not installed")
    database = str(arguments.database or "")
    if not database.startswith("postgres"):
        return
    if binary := shutil.which("prometheus-postgres-exporter"):
        at = port(arguments, "postgres")
        listen = f"--web.listen-address=127.0.0.1:{at}"
        rig.start("postgres", [binary, listen], {"DATA_SOURCE_NAME": database})
        rig.jobs["postgres"] = f"127.0.0.1:{at}"
    else:
        say("without PostgreSQL's figures: prometheus-postgres-exporter is not installed")


def locust_program():
    """Locust, in a virtual environment of its own."""
    folder = ROOT / ".samovar/tools/locust"
    if not (folder / "bin/locust").exists():
        say(f"installing {LOCUST} with pip")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", LOCUST], check=True)
    return folder / "bin/locust"


def start_locust(rig, arguments, target):
    at = port(arguments, "locust")
    binary = arguments.locust or locust_program()
    file = "cache.py" if arguments.target == "cache" else "kettles.py"
    command = [
        binary, "--locustfile", RIG / "locust" / file, "--host", target, "--autostart",
        "--users", arguments.users, "--spawn-rate", arguments.spawn_rate,
        "--web-host", "127.0.0.1", "--web-port", at,
    ]
    if arguments.processes > 1:
        between = free_port()
        command += ["--processes", arguments.processes, "--master-bind-host", "127.0.0.1",
                    "--master-bind-port", between, "--master-port", between]
    if arguments.target == "kettles":
        command.append({"as-2017": "As2017", "honest": "Honest"}[arguments.behaviour])
    rig.start("locust", command, {"PATHS": str(rig.data / "paths.txt")})
    rig.wait("locust", f"http://127.0.0.1:{at}/metrics")
    rig.jobs["locust"] = f"127.0.0.1:{at}"
    rig.add("locust", f"{arguments.users} users", f"http://127.0.0.1:{at}")


def start_prometheus(rig, arguments):
    binary = shutil.which("prometheus")
    if not binary:
        raise SystemExit("rig: prometheus is not installed")
    at = port(arguments, "prometheus")
    rig.jobs["prometheus"] = f"127.0.0.1:{at}"
    rules = ["recording.yml", "alerts.yml", "use.yml", "kettles.yml"]
    config = {
        "global": {
            "scrape_interval": f"{arguments.scrape}s", "evaluation_interval": f"{arguments.scrape}s"
        },
        # JSON is YAML, too.
        "rule_files": [str(RIG / "prometheus" / name) for name in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in rig.jobs.items()
        ],
    }
    path = rig.data / "prometheus.yml"
    path.write_text(json.dumps(config, indent=2))
    rig.start("prometheus", [
        binary, f"--config.file={path}", f"--storage.tsdb.path={rig.data / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{at}",
    ])
    url = f"http://127.0.0.1:{at}"
    rig.wait("prometheus", f"{url}/-/ready")
    rig.add("prometheus", "figures and alerts", f"{url}/alerts")
    return url


def start_grafana(rig, arguments, prometheus):
    binary = shutil.which("grafana") or shutil.which("grafana-server")
    if not binary:
        say(f"without Grafana, which is not installed; its dashboards: {RIG / 'grafana'}")
        return
    at = port(arguments, "grafana")
    folder = rig.data / "grafana"
    for name in ("datasources", "dashboards"):
        (folder / "provisioning" / name).mkdir(parents=True, exist_ok=True)
    source = {"name": "Prometheus", "type": "prometheus", "url": prometheus, "isDefault": True}
    provider = {"name": "rig", "type": "file", "options": {"path": str(RIG / "grafana/dashboards")}}
    for name, value in (
        ("datasources/rig.yml", {"apiVersion": 1, "datasources": [source]}),
        ("dashboards/rig.yml", {"apiVersion": 1, "providers": [provider]}),
    ):
        (folder / "provisioning" / name).write_text(json.dumps(value, indent=2))
    command = [binary, "server"] if binary.endswith("grafana") else [binary]
    rig.start("grafana", [*command, "--homepath", arguments.grafana_home], {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(at),
        "GF_PATHS_DATA": str(folder),
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
    })
    rig.add("grafana", "dashboards", f"http://127.0.0.1:{at}")


def up(rig, arguments):
    target = {"kettles": start_kettles, "cache": start_cache}[arguments.target](rig, arguments)
    rig.add("server", arguments.target, target)
    start_exporters(rig, arguments)
    if not arguments.no_locust:
        start_locust(rig, arguments, target)
    prometheus = start_prometheus(rig, arguments)
    start_grafana(rig, arguments, prometheus)
    rig.table()
    return prometheus


def watch(rig):
    """Until it is told to end, or a program has ended by itself."""
    while True:
        time.sleep(1)
        for name, child, log in rig.children:
            if child.poll() is not None:
                raise SystemExit(f"rig: {name} has ended\n{log.read_text()[-2000:]}")


def check(arguments, prometheus):
    """Every panel has data, as soon as rates over a minute have."""
    boards = {"kettles": ["kettles", "original", "use"], "cache": ["cache", "use"]}
    command = [sys.executable, RIG / "check_dashboards.py", "--live", prometheus]
    command += boards[arguments.target]
    end = time.monotonic() + arguments.seconds
    while True:
        time.sleep(5)
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode == 0 or time.monotonic() > end:
            print(said.stdout + said.stderr, end="")
            return said.returncode


def down():
    for path in DATA.glob("*/pid"):
        pid = int(path.read_text())
        command = pathlib.Path(f"/proc/{pid}/cmdline")
        # The number may be another program's by now.
        if command.exists() and b"rig.py" in command.read_bytes():
            os.kill(pid, signal.SIGTERM)
            say(f"told {pid} to end")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["up", "check", "down"])
    parser.add_argument("target", choices=["kettles", "cache"], nargs="?")
    parser.add_argument("--users", type=int, default=1000, help="of Locust [1000]")
    parser.add_argument("--spawn-rate", type=int, default=200, help="users a second [200]")
    parser.add_argument("--behaviour", choices=["honest", "as-2017"], default="honest")
    parser.add_argument("--processes", type=int, default=1, help="of Locust [1]")
    parser.add_argument("--no-locust", action="store_true", help="the load comes from elsewhere")
    parser.add_argument("--locust", type=pathlib.Path, help="its program [installed with pip]")
    parser.add_argument("--binary", type=pathlib.Path, help="the server [target/release]")
    parser.add_argument("--database", help="of the kettles [SQLite, in the data folder]")
    parser.add_argument("--store", type=pathlib.Path, default=SAMPLE, help="[the sample store]")
    parser.add_argument("--paths", type=pathlib.Path, help="store paths in it, one a line")
    parser.add_argument("--data", type=pathlib.Path, help="[a new folder in .samovar/rig]")
    parser.add_argument("--port", action="append", default=[], metavar="NAME=PORT",
                        help="of server, admin, prometheus, locust, node, process [free ones]")
    parser.add_argument("--scrape", type=int, help="seconds [10; 2 for check]")
    parser.add_argument("--seconds", type=int, default=120, help="that check may take [120]")
    parser.add_argument("--grafana-home", default="/usr/share/grafana")
    arguments = parser.parse_args()
    if arguments.action != "down" and not arguments.target:
        parser.error("which target?")
    arguments.scrape = arguments.scrape or (2 if arguments.action == "check" else 10)
    return arguments


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    arguments = parse()
    if arguments.action == "down":
        return down()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    DATA.mkdir(parents=True, exist_ok=True)
    data = arguments.data or pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=DATA))
    rig = Rig(data.resolve())
    (data / "pid").write_text(str(os.getpid()))
    try:
        prometheus = up(rig, arguments)
        if arguments.action == "check":
            return check(arguments, prometheus)
        say(f"up; logs and figures are in {data}; Ctrl-C ends all of it")
        watch(rig)
    except KeyboardInterrupt:
        say("ending")
    finally:
        rig.end()
        (data / "pid").unlink()
        if arguments.action == "check" and not arguments.data:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
