#!/usr/bin/env python3
"""Checks the dashboards without Grafana.

    check_dashboards.py                          checks ids, positions, the syntax of queries (promtool),
                                                 an alert for each row of `use`, a test for each alert
    check_dashboards.py --types                  also checks types, by @grafana/schema (npm, tsc)
    check_dashboards.py --live URL NAME…         also checks that every query of these dashboards has
        --without Cache                          data in Prometheus, except rows with such titles
        --without-metrics node_                  and queries of metrics with such names

The look of the dashboards is not checked.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

FOLDER = pathlib.Path(__file__).parent / "grafana/dashboards"
SCHEMA = "@grafana/schema@12.0.0"
TYPESCRIPT = "typescript@5.8.3"


def rows(board):
    """Panels by row; those before the first row have an empty title."""
    title = ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            title = panel["title"]
        else:
            yield title, panel


def as_sent(expr, interval="30s"):
    """A query with Grafana's variables replaced."""
    values = {"$__rate_interval": interval, "$__interval": "10s", "$instance": ".*"}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


def queries(board, without=(), absent=()):
    """Titles of panels, with their queries; `absent` are prefixes of metrics."""
    for row, panel in rows(board):
        if not row.startswith(tuple(without)):
            for target in panel["targets"]:
                if not any(re.search(rf"\b{prefix}", target["expr"]) for prefix in absent):
                    yield f"{row} / {panel['title']}".strip(" /"), as_sent(target["expr"])


def layout(board):
    """Faults of ids and positions."""
    ids = [panel["id"] for panel in board["panels"]]
    if len(ids) != len(set(ids)):
        yield "duplicate panel id"
    taken = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"{panel['title']} exceeds the width of 24"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield f"{panel['title']} covers {taken[x, y]}"
                    return
                taken[x, y] = panel["title"]
        if panel["type"] != "row" and not panel["targets"]:
            yield f"{panel['title']} has no query"


def syntax(boards):
    rules = [
        {"record": "x", "expr": expr} for board in boards.values() for _, expr in queries(board)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "x", "rules": rules}]}, file)
        file.flush()
        said = subprocess.run(
            ["promtool", "check", "rules", file.name], capture_output=True, text=True
        )
        # Panels may share a query.
        if said.returncode != 0 and "duplicate" not in said.stderr + said.stdout:
            yield said.stderr + said.stdout


def types(folder):
    """Type errors of the dashboards against Grafana's published schema."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", SCHEMA, TYPESCRIPT]
        subprocess.run(install, cwd=scratch, check=True)
        lines = ["import { Dashboard } from '@grafana/schema';"]
        for index, path in enumerate(sorted(folder.glob("*.json"))):
            lines.append(f"export const d{index}: Dashboard = {path.read_text()};")
        (scratch / "dashboards.ts").write_text("\n".join(lines))
        tsc = ["npx", "tsc", "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution",
               "node", "dashboards.ts"]
        said = subprocess.run(tsc, cwd=scratch, capture_output=True, text=True)
        if said.returncode != 0:
            yield said.stdout


def alerts(board):
    """Rows of the dashboard `use` without an alert, and alerts without a test."""
    folder = FOLDER.parents[1] / "prometheus"
    rules = "".join((folder / name).read_text() for name in ("use.yml", "kettles.yml"))
    about = set(re.findall(r'resource: "?([^"}]*)', rules))
    # Alerts of the cache are in alerts.yml, which is used without the rig.
    for title in dict.fromkeys(row for row, _ in rows(board) if not row.startswith("Cache")):
        if title not in about:
            yield f"no alert covers {title}"
    cases = (folder / "rig.test.yml").read_text()
    for name in re.findall(r"alert: (\w+)", rules):
        if f"alertname: {name}}}" not in cases or f'alertname="{name}"' not in cases:
            yield f"{name} lacks a test in which it fires, and one in which it does not"


def ask(prometheus, expr):
    """The result of a query."""
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}") as answer:
        return json.load(answer)["data"]["result"]


def has_data(prometheus, expr):
    """Whether a query has a number: a histogram without events has series, but no quantile."""
    return any(series["value"][1] != "NaN" for series in ask(prometheus, expr))


def live(prometheus, asked):
    for title, expr in asked:
        if not has_data(prometheus, expr):
            # Comparisons and error series may be empty.
            expr_without = re.sub(r' > \d+$|,status="5xx"', "", expr)
            if expr_without == expr or not has_data(prometheus, expr_without):
                yield f"{title}: no data for {expr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--live", metavar="URL")
    parser.add_argument("--without", metavar="ROW", action="append", default=[])
    parser.add_argument("--without-metrics", metavar="PREFIX", action="append", default=[])
    parser.add_argument("names", metavar="NAME", nargs="*")
    arguments = parser.parse_args()
    boards = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    wrong = list(syntax(boards))
    uids = [board["uid"] for board in boards.values()]
    if len(uids) != len(set(uids)):
        wrong.append("duplicate dashboard uid")
    for name, board in boards.items():
        wrong.extend(f"{name}: {said}" for said in layout(board))
    wrong.extend(f"use: {said}" for said in alerts(boards["use"]))
    if arguments.types:
        wrong.extend(types(FOLDER))
    asked = {
        name: list(queries(boards[name], arguments.without, arguments.without_metrics))
        for name in arguments.names or boards
    }
    if arguments.live:
        for name, some in asked.items():
            wrong.extend(f"{name}: {said}" for said in live(arguments.live, some))
    for said in wrong:
        print(f"check_dashboards: {said}", file=sys.stderr)
    count = sum(map(len, asked.values()))
    every = sum(len(list(queries(boards[name]))) for name in asked)
    left_out = f", {every - count} left out" if every > count else ""
    print(f"check_dashboards: {len(asked)} dashboards, {count} queries{left_out}, {len(wrong)} faults")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
