#!/usr/bin/env python3
"""Writes dashboards/{original,use,kettles}.json; with --check, says whether they are as written.

A panel is a title, a unit, what it is about, and its queries with their legends. Everything else is
the same for all of them.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"


def panel(title, unit, about, *queries, stacked=False):
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for index, (expr, legend) in enumerate(queries)
    ]
    defaults = {"unit": unit, "min": 0}
    if stacked:
        defaults["custom"] = {"fillOpacity": 20, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": []}


def dashboard(uid, title, panels, width):
    x = y = 0
    for index, it in enumerate(panels):
        it["id"] = index + 1
        is_row = it["type"] == "row"
        if x and (is_row or x + width > 24):
            x, y = 0, y + 8
        it["gridPos"] = {"h": 1 if is_row else 8, "w": 24 if is_row else width, "x": x, "y": y}
        if is_row or width == 24:
            y += it["gridPos"]["h"]
        else:
            x += width
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }
    return {
        "uid": uid,
        "title": title,
        "tags": ["samovar"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [source]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


# The eight panels of 2017, in their order. Queries have today's names of the same things; where
# there was a Haskell runtime, there is the memory of the process.
ORIGINAL = [
    panel("Total Requests Per Second", "ops", "What Locust has answered.",
          ("locust_request_per_second", "{{method}} {{endpoint}}")),
    panel("Average Response Time", "ms", "Since the start, as Locust saw it.",
          ("locust_average_response", "{{method}} {{endpoint}}")),
    panel("Number of users", "short", "Of Locust.", ("locust_users", "users")),
    panel("Node CPU", "percentunit", "Each processor of the machine.",
          ('1.0 - irate(node_cpu_seconds_total{job="node",mode="idle"}[30s])', "{{cpu}}")),
    panel("App Server CPU Usage", "percentunit", "The server, and the database if it has one.",
          ('rate(process_cpu_seconds_total{job=~"kettles|cache"}[30s])', "{{job}}"),
          ('sum by (groupname) (rate(namedprocess_namegroup_cpu_seconds_total[30s]))',
           "{{groupname}}")),
    panel("Node Memory Utilization", "bytes", "Used lately.",
          ("node_memory_Active_bytes", "active")),
    panel("Measurements recorded", "short", "Since the server was started.",
          ("app_measurements_total", "{{instance}}")),
    panel("Server Memory", "bytes", "In the place of the runtime's memory.",
          ('process_resident_memory_bytes{job=~"kettles|cache"}', "{{job}}")),
]

USE = [
    row("Processors"),
    panel("Busy", "percentunit", "Utilisation: part of all processors.",
          ("instance:node_cpu_busy:ratio1m", "{{instance}}")),
    panel("Waiting", "percentunit", "Saturation: part of the time in which somebody waited.",
          ("instance:node_cpu_waiting:ratio1m", "pressure")),
    panel("By program", "percentunit", "One is a processor.",
          (f"sum by (groupname) (rate(namedprocess_namegroup_cpu_seconds_total[{RATE}]))",
           "{{groupname}}"), stacked=True),
    row("Memory"),
    panel("Used", "percentunit", "Utilisation: what could not be had at once.",
          ("instance:node_memory_used:ratio", "{{instance}}")),
    panel("Waiting", "percentunit", "Saturation: part of the time in which somebody waited.",
          ("instance:node_memory_waiting:ratio1m", "pressure")),
    panel("By program", "bytes", "Resident.",
          ('sum by (groupname) (namedprocess_namegroup_memory_bytes{memtype="resident"})',
           "{{groupname}}")),
    row("Disks"),
    panel("Busy", "percentunit", "Utilisation: part of the time with a request under way.",
          ("instance_device:node_disk_busy:ratio1m", "{{device}}")),
    panel("Waiting", "percentunit", "Saturation: part of the time in which somebody waited.",
          ("instance:node_io_waiting:ratio1m", "pressure")),
    panel("Written", "Bps", "What was written.",
          (f"rate(node_disk_written_bytes_total[{RATE}])", "{{device}}")),
    row("Network and descriptors"),
    panel("Bytes", "Bps", "Utilisation, the loopback among it.",
          ("instance:node_network_bytes:rate1m", "{{instance}}")),
    panel("Overflows", "cps", "Saturation: connections dropped, segments sent again.",
          ("instance:node_listen_overflows:rate1m", "dropped"),
          (f"rate(node_netstat_Tcp_RetransSegs[{RATE}])", "sent again")),
    panel("Descriptors", "percentunit", "Of what each server may have.",
          ("process_open_fds / process_max_fds", "{{job}}")),
]

SECONDS = "http_request_duration_seconds"
KETTLES = [
    row("What is asked for"),
    panel("Requests", "reqps", "By what they are about.",
          (f"sum by (handler) (rate({SECONDS}_count[{RATE}]))", "{{handler}}")),
    panel("Measurements", "ops", "Stored durably.",
          (f"rate(app_measurements_total[{RATE}])", "stored"),
          (f"rate(kettles_ingest_duplicates_total[{RATE}])", "there already"),
          (f"rate(kettles_pruned_total[{RATE}])", "deleted for age")),
    panel("Devices", "short", "Known, and heard of lately.",
          ("kettles_devices", "known"), ("kettles_active_devices", "active")),
    row("How well"),
    panel("Latency, median", "s", "From the end of a request to the end of its answer.",
          (f"histogram_quantile(0.5, sum by (handler, le) (rate({SECONDS}_bucket[{RATE}])))",
           "{{handler}}")),
    panel("Latency, 99 of 100", "s", "The same.",
          ("instance_handler:kettles_request_seconds:p99_1m", "{{handler}}")),
    panel("Answers by status", "reqps", "503 is back-pressure, others from 400 on are errors.",
          (f"sum by (status_code) (rate({SECONDS}_count[{RATE}]))", "{{status_code}}")),
    row("The queue and the store"),
    panel("Queue", "percentunit", "Saturation: rows that wait, of those that may.",
          ("instance:kettles_queue:ratio", "{{instance}}")),
    panel("Oldest row", "s", "How long it has waited.",
          ("kettles_ingest_oldest_seconds", "{{instance}}")),
    panel("Sent away", "ops", "Rows answered with 503, and commits that failed.",
          (f"rate(kettles_ingest_rejected_total[{RATE}])", "{{reason}}"),
          (f"rate(kettles_ingest_commit_failures_total[{RATE}])", "commits failed")),
    panel("Commits", "percentunit", "Utilisation: part of the time in a commit.",
          ("instance:kettles_commit_busy:ratio1m", "{{instance}}")),
    panel("Commit time", "s", "Median, and 99 of 100.",
          *((f"histogram_quantile({part}, sum by (le) "
             f"(rate(kettles_ingest_commit_seconds_bucket[{RATE}])))", legend)
            for part, legend in ((0.5, "median"), (0.99, "99 of 100")))),
    panel("Rows of a commit", "short", "The more there are, the less each costs.",
          ("instance:kettles_batch_rows:mean1m", "mean")),
    row("The engine"),
    panel("Threads", "percentunit", "Utilisation: one is a processor.",
          (f"sum by (worker) (rate(engine_worker_busy_seconds_total[{RATE}]))", "{{worker}}"),
          stacked=True),
    panel("Loop lag, 99 of 100", "s", "Saturation: until all I/O threads have answered a call.",
          ("instance:kettles_loop_lag_seconds:p99_1m", "{{instance}}")),
    panel("Workers", "short", "Running, and what waits for one.",
          ("engine_workers_running", "running"), ("engine_requests_queued", "queued")),
    panel("Connections", "short", "Open, and how many there may be.",
          ("engine_connections", "{{state}}")),
    panel("Not accepted", "cps", "Connections that were not to be had, and other incidents.",
          (f"rate(engine_accept_errors_total[{RATE}])", "{{reason}}"),
          (f"rate(engine_incidents_total[{RATE}])", "incidents"),
          (f"rate(engine_accepted_total[{RATE}])", "accepted")),
    panel("Descriptors", "short", "Open, and how many there may be.",
          ('process_open_fds{job="kettles"}', "open"), ('process_max_fds{job="kettles"}', "max")),
    row("The load"),
    panel("Offered and answered", "reqps", "What lies between was held up.",
          ("sum(locust_offered_per_second)", "offered"),
          ("sum(instance:kettles_requests:rate1m)", "answered")),
    panel("Locust's response times", "s", "99 of 100, with what Locust itself adds.",
          (f"histogram_quantile(0.99, sum by (endpoint, le) "
           f"(rate(locust_response_time_seconds_bucket[{RATE}])))", "{{endpoint}}")),
    panel("Locust's failures", "cps", "By endpoint.",
          (f"rate(locust_failed_requests[{RATE}])", "{{endpoint}}")),
]

DASHBOARDS = {
    "original.json": dashboard("samovar-original", "Load Test", ORIGINAL, 24),
    "use.json": dashboard("samovar-use", "Samovar: utilisation, saturation, errors", USE, 8),
    "kettles.json": dashboard("samovar-kettles", "Samovar: kettles", KETTLES, 8),
}


def main():
    stale = []
    for name, board in DASHBOARDS.items():
        path, text = FOLDER / name, json.dumps(board, indent=2) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        sys.exit(f"make.py: not as it writes them: {', '.join(stale)}")


if __name__ == "__main__":
    main()
