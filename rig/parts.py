"""The parts of the rig: servers, exporters, Locust, Prometheus, Grafana."""

import json
import os
import pathlib
import re
import resource
import shutil
import sqlite3
import subprocess
import sys

import postgresql
from started import free_port, say

RIG = pathlib.Path(__file__).resolve().parent
ROOT = RIG.parent
LOCUST = "locust==2.47.0"
# Maximum number of users in one Locust process, because each needs a descriptor.
USERS_OF_A_PROCESS = 10_000
# Descriptors of the kettles server that are not connections.
FILES = 256
RULES = ["recording.yml", "alerts.yml", "use.yml", "kettles.yml"]
# A balancer of requests, not of connections: a kettle's requests may go to any server.
HAPROXY = """\
defaults
  mode http
  timeout connect 5s
  timeout client 120s
  timeout server 60s
  timeout tunnel 1h
frontend kettles
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance roundrobin
  option httpchk GET /metrics
{servers}
frontend metrics
  bind 127.0.0.1:{metrics}
  http-request use-service prometheus-exporter if {{ path /metrics }}
"""
# Collectors of node_exporter: those of the 2017 study, and pressure.
COLLECTORS = [
    "conntrack", "cpu", "diskstats", "entropy", "filefd", "filesystem", "loadavg", "meminfo", "netdev",
    "netstat", "pressure", "stat", "time", "vmstat",
]


def port(arguments, name):
    return dict(arguments.port).get(name) or free_port()


def program(package):
    """The release binary; builds it if it is missing."""
    path = ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target") / "release" / package
    if not path.exists():
        say(f"building {package}")
        subprocess.run(
            ["cargo", "build", "--release", "--package", package], cwd=ROOT, check=True
        )
    return path


def start_kettles(rig, arguments, mode="serve"):
    """Starts the kettles server, today's or that of 2017, or several of them behind a balancer."""
    at = port(arguments, "server")
    binary = arguments.binary or program("kettles")
    database = arguments.database or rig.data / "kettles.sqlite"
    if arguments.servers > 1:
        return start_balanced(rig, arguments, at, [binary, mode, "--database", database])
    rig.absent.add("haproxy_")
    command = [binary, mode, "--port", at, "--database", database]
    places = arguments.server_processes * (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES)
    if arguments.locust != "none" and arguments.users > places:
        say(f"only {places} of {arguments.users} users can connect; raise --server-processes")
    if arguments.server_processes > 1:
        command += ["--processes", arguments.server_processes]
    child = rig.serve("server", "kettles", at, command)
    if arguments.server_processes > 1:
        # Each process prints its own address, and a restarted process prints it again.
        def alone():
            return re.findall(r"alone: http://(.*)/metrics", child.log.read_text())

        rig.wait(child, lambda: len(alone()) == arguments.server_processes, "the address of each process")
        rig.jobs["kettles"] = alone()
    url = f"http://127.0.0.1:{at}"
    if mode == "serve":
        rig.add("live", "the live page", f"{url}/live")
    return url


def start_balanced(rig, arguments, at, command):
    """Starts servers with one database, and haproxy, which distributes the requests to them."""
    balancer = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if not balancer:
        raise SystemExit("rig: --servers needs haproxy, which is not installed")
    ports = [free_port() for _ in range(arguments.servers)]
    for number, own in enumerate(ports, 1):
        # One after the other: the first creates the tables.
        rig.serve(f"server-{number}", "kettles", own, [*command, "--port", own])
    rig.jobs["kettles"] = [f"127.0.0.1:{own}" for own in ports]
    servers = "\n".join(f"  server s{number} 127.0.0.1:{own} check" for number, own in enumerate(ports, 1))
    metrics = port(arguments, "haproxy")
    path = rig.data / "haproxy.cfg"
    path.write_text(HAPROXY.format(port=at, servers=servers, metrics=metrics))
    rig.serve("balancer", "haproxy", metrics, [balancer, "-db", "-f", path])
    return f"http://127.0.0.1:{at}"


def start_replay(rig, arguments):
    return start_kettles(rig, arguments, "replay-2017")


def start_cache(rig, arguments):
    at, admin = port(arguments, "server"), port(arguments, "admin")
    binary = arguments.binary or program("nix-serve")
    command = [binary, "--listen", f"127.0.0.1:{at}", "--admin", f"127.0.0.1:{admin}"]
    if arguments.action == "check":
        # PostgreSQL has panels of its own.
        command += ["--scrub", "1000000"]
    if str(arguments.store) != "/":
        command += ["--store", f"local?root={arguments.store}"]
    # Removes the caller's Nix settings.
    env = {name: "" for name in os.environ if name.startswith("NIX_")}
    child = rig.serve("server", "samovar", admin, command, env=env)
    url = f"http://127.0.0.1:{at}"
    rig.answers(child, f"{url}/nix-cache-info")
    rig.add("status", "the status page", f"http://127.0.0.1:{admin}/status")
    write_paths(arguments.store, rig.data / "paths.txt")
    return url


def write_paths(store, file):
    """Writes the paths to request: all of a store, or the undamaged ones of the sample."""
    sample = store / "sample.json"
    if sample.exists():
        paths = json.loads(sample.read_text())["graph"]
    else:
        database = store / "nix/var/nix/db/db.sqlite"
        try:
            with sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True) as nix:
                paths = [path for path, in nix.execute("SELECT path FROM ValidPaths")]
        except (sqlite3.Error, OSError) as error:
            raise SystemExit(f"rig: {database}: {error}")
    if not paths:
        raise SystemExit(f"rig: the store at {store} has no paths")
    file.write_text("\n".join(paths) + "\n")


def start_exporters(rig, arguments):
    if binary := shutil.which("prometheus-node-exporter"):
        at = port(arguments, "node")
        command = [binary, f"--web.listen-address=127.0.0.1:{at}", "--collector.disable-defaults"]
        # By default, the exporter excludes the loopback interface.
        command += ["--collector.netdev.device-exclude=^$"]
        command += [f"--collector.{name}" for name in COLLECTORS]
        rig.serve("node-exporter", "node", at, command)
    else:
        rig.lacks("node_", "metrics of the machine", "prometheus-node-exporter")
    if str(arguments.database).startswith("postgres"):
        postgresql.start_exporter(rig, arguments.database, port(arguments, "postgres"))


def start_process_exporter(rig, arguments):
    """Exports metrics of the programs running now."""
    binary = shutil.which("prometheus-process-exporter")
    if not binary:
        return rig.lacks("namedprocess_", "metrics of programs", "prometheus-process-exporter")
    at = port(arguments, "process")
    names = rig.data / "process.yml"
    # JSON is valid YAML.
    names.write_text(json.dumps({"process_names": rig.names()}))
    listen = f"-web.listen-address=127.0.0.1:{at}"
    rig.serve("process-exporter", "process", at, [binary, "-config.path", names, listen])


def locust_program():
    """The Locust executable, in its own virtual environment."""
    folder = ROOT / ".samovar/tools/locust"
    # Not bin/locust: it contains the path of the folder, which may have moved.
    python = folder / "bin/python"
    if not (folder / "bin/locust").exists():
        say(f"installing {LOCUST} with pip")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", LOCUST], check=True)
    return [python, "-m", "locust"]


def start_locust(rig, arguments, target):
    at = port(arguments, "locust")
    file = "cache.py" if arguments.target == "cache" else "kettles.py"
    command = [
        *([arguments.locust_program] if arguments.locust_program else locust_program()),
        "--locustfile", RIG / "locust" / file, "--host", target, "--autostart",
        "--users", arguments.users, "--spawn-rate", arguments.spawn_rate,
        "--web-host", "127.0.0.1", "--web-port", at,
    ]
    processes = arguments.processes or -(-arguments.users // USERS_OF_A_PROCESS)
    if processes > 1:
        between = free_port()
        command += ["--processes", processes, "--master-bind-host", "127.0.0.1",
                    "--master-bind-port", between, "--master-port", between]
    if arguments.target != "cache":
        command.append({"as-2017": "As2017", "honest": "Honest"}[arguments.locust])
    env = {"PATHS": str(rig.data / "paths.txt")}
    rig.serve("locust", "locust", at, command, env=env)
    rig.add("locust", f"{arguments.users} users", f"http://127.0.0.1:{at}")


def start_prometheus(rig, arguments):
    binary = shutil.which("prometheus")
    if not binary:
        raise SystemExit("rig: prometheus is not installed")
    at = port(arguments, "prometheus")
    url = f"http://127.0.0.1:{at}"
    interval = f"{arguments.scrape}s"
    jobs = {**rig.jobs, "prometheus": [f"127.0.0.1:{at}"]}
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(RIG / "prometheus" / name) for name in RULES],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": addresses}]}
            for job, addresses in jobs.items()
        ],
    }
    path = rig.data / "prometheus.yml"
    path.write_text(json.dumps(config, indent=2))
    child = rig.start("prometheus", [
        binary, f"--config.file={path}", f"--storage.tsdb.path={rig.data / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{at}",
    ])
    rig.answers(child, f"{url}/-/ready")
    rig.add("prometheus", "metrics and alerts", f"{url}/alerts")
    return url


def start_grafana(rig, arguments, prometheus):
    binary = shutil.which("grafana") or shutil.which("grafana-server")
    if not binary:
        return say(f"Grafana is not installed; its dashboards are in {RIG / 'grafana'}")
    at = port(arguments, "grafana")
    command = [binary, "server"] if binary.endswith("grafana") else [binary]
    child = rig.start("grafana", [*command, "--homepath", arguments.grafana_home], {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(at),
        "GF_PATHS_DATA": str(rig.data / "grafana"),
        "GF_PATHS_LOGS": str(rig.data / "grafana"),
        "GF_PATHS_PROVISIONING": str(RIG / "grafana/provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "PROMETHEUS_URL": prometheus,
        "DASHBOARDS": str(RIG / "grafana/dashboards"),
    })
    url = f"http://127.0.0.1:{at}"
    rig.answers(child, f"{url}/api/health")
    rig.add("grafana", "dashboards", url)
