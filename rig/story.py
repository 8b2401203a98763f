"""Repeats the 2017 study. It raises the load until the server of 2017 is saturated, prints utilisation,
saturation and errors of each resource at that moment, and then puts the same load, and ten times as much,
on today's server. Each server has a PostgreSQL of its own."""

import json
import time

import check_dashboards
import parts
import postgresql
from started import Rig, say

STEP_S = 12
# Number of connections, which the kettles share; with more, the cost of connections would dominate.
CONNECTIONS = 1000
# Turns per second of the first step; each further step doubles it until the server is saturated.
FIRST = 125
# The server is saturated if it completes less than this share of the offered load.
KEPT_UP = 0.95
# Window of the rates in the table: half a step.
INTERVAL = "6s"
# Processes of the server and its database.
CORES = check_dashboards.as_sent(
    'rate(namedprocess_namegroup_cpu_seconds_total{groupname=~"server|postgresql"}[$__rate_interval])',
    INTERVAL,
)
USE = json.loads((check_dashboards.FOLDER / "use.json").read_text())


def figure(value, unit):
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        return f"{value * 1000:.0f} ms"
    if unit == "Bps":
        return f"{value / 1e6:.1f} MB/s"
    return f"{value:.3g}{'/s' if unit == 'cps' else ''}"


def legend(target, labels):
    text = target["legendFormat"]
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def cell(prometheus, panel):
    """The current values of a panel; "0" if it has none."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    shown = []
    for target in panel["targets"]:
        expr = check_dashboards.as_sent(target["expr"], INTERVAL)
        for series in check_dashboards.ask(prometheus, expr):
            value = float(series["value"][1])
            if value > 0:
                shown.append((value, f"{legend(target, series['metric'])} {figure(value, unit)}"))
    return ", ".join(text for _, text in sorted(shown, reverse=True)[:4]) or "0"


def use_table(prometheus):
    lines = ["| resource | utilisation | saturation | errors |", "|---|---|---|---|"]
    resources = {}
    for row, panel in check_dashboards.rows(USE):
        resources.setdefault(row, []).append(panel)
    for row, panels in resources.items():
        if row.startswith(("Kettles", "Cache")):
            continue
        cells = [cell(prometheus, panel) for panel in panels]
        # The third panel of some rows is no error metric.
        if panels[2]["title"] != "Errors":
            cells[0] += f"; {panels[2]['title'].lower()}: {cells[2]}"
            cells[2] = "–"
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def load(rig, address, turns, prometheus):
    """Runs one step; returns swarm's report and the USE table shortly before its end."""
    report = rig.data / f"swarm-{turns}.json"
    period = 10
    child = rig.start(f"swarm-{turns}", [
        parts.program("swarm"), "kettles", "--address", address, "--count", turns * period,
        "--connections", CONNECTIONS, "--every", period, "--for", STEP_S, "--quiet",
        "--json", report,
    ])
    time.sleep(STEP_S - 1)
    table = use_table(prometheus)
    cores = sum(float(it["value"][1]) for it in check_dashboards.ask(prometheus, CORES))
    child.process.wait(60)
    rig.children.remove(child)
    # swarm exits with an error at saturation, which is expected here.
    if not report.exists():
        raise SystemExit(child.said())
    return json.loads(report.read_text()), cores, table


def line(mode, turns, report, cores):
    measurement = next(it for it in report["operations"] if it["name"] == "measurement")
    answered = report["answered"] / 2 / report["seconds"]
    failures = {name: count for name, count in report["failures"].items() if count}
    failures = ", ".join(f"{count} {name}" for name, count in failures.items()) or "0"
    p50, p99 = (measurement[name] / 1000 for name in ("p50_us", "p99_us"))
    print(f"| `{mode}` | {turns} | {answered:.0f} | {p50:.0f}, {p99:.0f} ms | {failures} | "
          f"{cores:.2f} | {cores / answered * 1e6:.0f} µs |", flush=True)
    return answered


def part(arguments, data, mode, loads):
    """Raises the load until the server is saturated; returns that load and its USE table."""
    with Rig(data) as rig:
        arguments.database = postgresql.start(rig)
        url = parts.start_kettles(rig, arguments, mode)
        parts.start_exporters(rig, arguments)
        parts.start_process_exporter(rig, arguments)
        prometheus = parts.start_prometheus(rig, arguments)
        for turns in loads:
            *said, table = load(rig, url.removeprefix("http://"), turns, prometheus)
            if line(mode, turns, *said) < KEPT_UP * turns:
                break
        return turns, table


def tell(arguments, data):
    say(f"steps of {STEP_S} s; a turn is a command and a measurement; {CONNECTIONS} connections")
    print("| server | turns/s offered | answered | p50, p99 of measurements | failures "
          "| processors | a turn |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    arguments.scrape = 1
    rising = (FIRST * 2**doubled for doubled in range(7))
    turns, before = part(arguments, data / "replay-2017", "replay-2017", rising)
    _, after = part(arguments, data / "serve", "serve", [turns])
    _, beyond = part(arguments, data / "serve-10", "serve", [10 * turns])
    for title, table in (
        (f"`replay-2017`, {turns} turns/s", before),
        (f"`serve`, {turns} turns/s", after),
        (f"`serve`, {10 * turns} turns/s", beyond),
    ):
        print(f"\n{title}\n\n{table}")
