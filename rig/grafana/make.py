#!/usr/bin/env python3
"""Writes dashboards/{original,use,kettles}.json; with --check, says whether they are as written.

A panel is a title, a unit, what it is about, and its queries with their legends. Everything else is
the same for all of them.

A server may be several processes. What they do is summed, what they know is the same for all, and where
each has a limit of its own it is either told apart or the worst of them.
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
          ('sum by (job) (rate(process_cpu_seconds_total{job=~"kettles|samovar"}[30s]))', "{{job}}"),
          ('sum by (groupname) (rate(namedprocess_namegroup_cpu_seconds_total[30s]))',
           "{{groupname}}")),
    panel("Node Memory Utilization", "bytes", "Used lately.",
          ("node_memory_Active_bytes", "active")),
    panel("Measurements recorded", "short", "Since the server was started.",
          ("sum(app_measurements_total)", "recorded")),
    panel("Server Memory", "bytes", "In the place of the runtime's memory.",
          ('sum by (job) (process_resident_memory_bytes{job=~"kettles|samovar"})', "{{job}}")),
]


def resource(title, utilisation, saturation, errors):
    """A row of the USE table: three panels, each a unit, what it is about, and its queries."""
    yield row(title)
    for name, (unit, about, *queries) in zip(
        ("Utilisation", "Saturation", "Errors"), (utilisation, saturation, errors)
    ):
        # Where there are no errors to count, something else fills the place.
        own, _, about = about.rpartition(": ")
        yield panel(own or name, unit, about, *queries)


def per_second(series, by=""):
    return f"sum by ({by}) (rate({series}[{RATE}]))"


def times(histogram, by=""):
    """Queries for half and for 99 of 100 of what a histogram of seconds has."""
    rates = per_second(f"{histogram}_bucket", f"{by}, le" if by else "le")
    name = f"{{{{{by}}}}}, " if by else ""
    for part, legend in ((0.5, "median"), (0.99, "99 of 100")):
        yield f"histogram_quantile({part}, {rates})", f"{name}{legend}"


# Servers of either kind; what only one of them has is in rows of its own, which begin with its name.
SERVERS = '{job=~"kettles|samovar"}'
REQUESTS = "http_request_duration_seconds_count"
USE = [
    *resource(
        "Processors",
        ("percentunit", "Part of all processors.",
         (f'1 - avg(rate(node_cpu_seconds_total{{mode="idle"}}[{RATE}]))', "busy")),
        ("percentunit", "Part of the time in which somebody waited for one.",
         (f"rate(node_pressure_cpu_waiting_seconds_total[{RATE}])", "waiting")),
        ("percentunit", "By program: One is a processor.",
         (per_second("namedprocess_namegroup_cpu_seconds_total", "groupname"), "{{groupname}}")),
    ),
    *resource(
        "Memory",
        ("percentunit", "What could not be had at once, and the server's part of all.",
         ("1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes", "used"),
         (f"sum by (job) (process_resident_memory_bytes{SERVERS}) / scalar(node_memory_MemTotal_bytes)",
          "{{job}}")),
        ("percentunit", "Part of the time in which somebody waited for some.",
         (f"rate(node_pressure_memory_waiting_seconds_total[{RATE}])", "waiting")),
        ("cps", "Programs killed for want of it.",
         (f"rate(node_vmstat_oom_kill[{RATE}])", "killed")),
    ),
    *resource(
        "Disks",
        ("percentunit", "Part of the time with a request under way.",
         (f"rate(node_disk_io_time_seconds_total[{RATE}])", "{{device}}")),
        ("percentunit", "Part of the time in which somebody waited for one.",
         (f"rate(node_pressure_io_waiting_seconds_total[{RATE}])", "waiting")),
        ("Bps", "Written: By disk.",
         (f"rate(node_disk_written_bytes_total[{RATE}])", "{{device}}")),
    ),
    *resource(
        "Network",
        ("Bps", "Received and sent, the loopback among it.",
         (f"sum(rate(node_network_receive_bytes_total[{RATE}])) + "
          f"sum(rate(node_network_transmit_bytes_total[{RATE}]))", "bytes")),
        ("cps", "Connections that found a listening socket full, and segments sent again.",
         (f"rate(node_netstat_TcpExt_ListenOverflows[{RATE}])", "overflows"),
         (f"rate(node_netstat_Tcp_RetransSegs[{RATE}])", "sent again")),
        ("cps", "Connections that ended in a reset.",
         (f"rate(node_netstat_Tcp_OutRsts[{RATE}])", "resets")),
    ),
    *resource(
        "Descriptors",
        ("percentunit", "Of what each process may have; that which has most.",
         (f"max by (job) (process_open_fds{SERVERS} / process_max_fds{SERVERS})", "{{job}}")),
        ("cps", "Connections for which there was no place.",
         (f'sum(rate(engine_accept_errors_total{{reason="full"}}[{RATE}])) or '
          f'sum(rate(samovar_events_total{{event=~"connections_full|gave_way"}}[{RATE}]))', "full")),
        ("cps", "Connections that the system did not give.",
         (f'sum(rate(engine_accept_errors_total{{reason!="full"}}[{RATE}])) or '
          f'sum(rate(samovar_events_total{{event="accept_failed"}}[{RATE}]))', "not accepted")),
    ),
    *resource(
        "The engine's threads",
        ("percentunit", "One is a processor.",
         (f"{per_second('engine_worker_busy_seconds_total', 'worker')} or "
          f"label_replace({per_second('samovar_io_thread_busy_seconds_total', 'thread')}, "
          '"worker", "io $1", "thread", "(.*)")', "{{worker}}")),
        ("s", "Until I/O threads answered a call. A cache tells of the last one, which is both.",
         *((f"{expr} or samovar_io_loop_lag_seconds", legend)
           for expr, legend in times("engine_loop_lag_seconds"))),
        ("cps", "Answers of 500 and above.",
         (f'sum(rate({REQUESTS}{{status_code=~"5.."}}[{RATE}])) or 0 * sum(rate({REQUESTS}[{RATE}])) '
          f'or sum(rate(samovar_http_requests_total{{status="5xx"}}[{RATE}])) or '
          f"0 * sum(rate(samovar_http_requests_total[{RATE}]))", "5xx")),
    ),
    *resource(
        "Kettles: the queue",
        ("percentunit", "Rows in it, of those that may be; of several processes the fullest.",
         ("max(instance:kettles_queue:ratio)", "rows")),
        ("s", "How long requests were in it, and how long the oldest row is by now.",
         *times("kettles_ingest_wait_seconds"),
         ("max(kettles_ingest_oldest_seconds)", "oldest")),
        ("cps", "Rows answered with 503.",
         (per_second("kettles_ingest_rejected_total", "reason"), "{{reason}}")),
    ),
    *resource(
        "Kettles: the store",
        ("percentunit", "Part of the time in a commit; of several processes the busiest.",
         ("max(instance:kettles_commit_busy:ratio1m)", "committing")),
        ("short", "Rows of a commit: they grow when commits are slow.",
         (f"{per_second('kettles_ingest_batch_rows_sum')} / "
          f"{per_second('kettles_ingest_batch_rows_count')}", "rows")),
        ("cps", "Commits that failed.",
         (per_second("kettles_ingest_commit_failures_total"), "failed")),
    ),
    panel("Commit", "s", "How long one took.", *times("kettles_ingest_commit_seconds")),
    panel("Of it, the disk", "s", "Until its log was there; of PostgreSQL, its COMMIT.",
          *times("kettles_ingest_sync_seconds")),
    *resource(
        "PostgreSQL: connections",
        ("percentunit", "Those that do something or are in a transaction, of all.",
         ('(sum(pg_backends_count{state!="idle"}) or vector(0)) / sum(pg_backends_count)', "taken")),
        ("short", "Requests that wait for one.",
         ("replay_waiting_requests or sum(kettles_ingest_queue_rows)", "waiting")),
        ("short", "By state: What they do.",
         ("sum by (state) (pg_backends_count)", "{{state}}")),
    ),
    *resource(
        "PostgreSQL: the server",
        ("short", "Statements that run, on average.",
         (f"sum(rate(pg_stat_database_active_time[{RATE}])) / 1000", "running")),
        ("short", "What its connections wait for; Client is whoever is at the other end.",
         ("sum by (wait) (pg_backends_count)", "{{wait}}")),
        ("cps", "Deadlocks, and transactions undone.",
         (f"sum(rate(pg_stat_database_deadlocks[{RATE}]))", "deadlocks"),
         (f"sum(rate(pg_stat_database_xact_rollback[{RATE}]))", "undone")),
    ),
    *resource(
        "Cache: bodies",
        ("Bps", "Bytes of NARs and of everything else.",
         (f"sum(rate(samovar_http_response_body_bytes_total[{RATE}]))", "sent")),
        ("percentunit", "Memory for bodies under way, of what there may be.",
         ("samovar_body_memory_bytes / samovar_body_memory_max_bytes", "memory")),
        ("cps", "Bodies that did not end well.",
         (f"sum(rate(samovar_http_responses_broken_total[{RATE}]))", "broken")),
    ),
    *resource(
        "Cache: workers",
        ("percentunit", "Of those that there may be.",
         ("samovar_workers_busy / samovar_workers_max", "busy")),
        ("short", "Requests that wait for one.", ("samovar_workers_queued", "waiting")),
        ("cps", "Of the store.", (f"sum(rate(samovar_store_errors_total[{RATE}]))", "failed")),
    ),
]

SECONDS = "http_request_duration_seconds"
KETTLES = [
    row("What is asked for"),
    panel("Requests", "reqps", "By what they are about.",
          (f"sum by (handler) (rate({SECONDS}_count[{RATE}]))", "{{handler}}")),
    panel("Measurements", "ops", "Stored durably.",
          (per_second("app_measurements_total"), "stored"),
          (per_second("kettles_ingest_duplicates_total"), "there already"),
          (per_second("kettles_pruned_total"), "deleted for age")),
    panel("Devices", "short", "Known, and heard of lately.",
          ("max(kettles_devices)", "known"), ("sum(kettles_active_devices)", "active")),
    row("How well"),
    panel("Latency, median", "s", "From the end of a request to the end of its answer.",
          (f"histogram_quantile(0.5, {per_second(SECONDS + '_bucket', 'handler, le')})",
           "{{handler}}")),
    panel("Latency, 99 of 100", "s", "The same.",
          ("handler:kettles_request_seconds:p99_1m", "{{handler}}")),
    panel("Answers by status", "reqps", "503 is back-pressure, others from 400 on are errors.",
          (f"sum by (status_code) (rate({SECONDS}_count[{RATE}]))", "{{status_code}}")),
    row("The queue and the store"),
    panel("Queue", "percentunit", "Saturation: rows that wait, of those that may.",
          ("instance:kettles_queue:ratio", "{{instance}}")),
    panel("Oldest row", "s", "How long it has waited.",
          ("kettles_ingest_oldest_seconds", "{{instance}}")),
    panel("Sent away", "ops", "Rows answered with 503, and commits that failed.",
          (per_second("kettles_ingest_rejected_total", "reason"), "{{reason}}"),
          (per_second("kettles_ingest_commit_failures_total"), "commits failed")),
    panel("Wait", "s", "How long requests were in the queue before their commit.",
          *times("kettles_ingest_wait_seconds")),
    panel("Commit time", "s", "Of a transaction, whatever it is made of.",
          *times("kettles_ingest_commit_seconds")),
    panel("Of it, the disk", "s", "Until its log was there; of PostgreSQL, its COMMIT.",
          *times("kettles_ingest_sync_seconds")),
    panel("Commits", "percentunit", "Utilisation: part of the time in a commit.",
          ("instance:kettles_commit_busy:ratio1m", "{{instance}}")),
    panel("Rows of a commit", "short", "The more there are, the less each costs.",
          ("instance:kettles_batch_rows:mean1m", "{{instance}}")),
    row("The engine"),
    panel("Threads", "percentunit", "Utilisation: one is a processor.",
          (per_second("engine_worker_busy_seconds_total", "worker"), "{{worker}}"),
          stacked=True),
    panel("Loop lag", "s", "Saturation: until all I/O threads have answered a call.",
          *times("engine_loop_lag_seconds", "instance")),
    panel("Workers", "short", "Running, and what waits for one.",
          ("sum(engine_workers_running)", "running"), ("sum(engine_requests_queued)", "queued")),
    panel("Connections", "short", "Open, how many there may be, and those that wait to be accepted.",
          ("sum by (state) (engine_connections)", "{{state}}"), ("max(engine_backlog)", "waiting")),
    panel("Not accepted", "cps", "Connections that were not to be had, and other incidents.",
          (per_second("engine_accept_errors_total", "reason"), "{{reason}}"),
          (per_second("engine_incidents_total"), "incidents"),
          (per_second("engine_accepted_total"), "accepted")),
    panel("Descriptors", "short", "Of each process, and how many it may have.",
          ('process_open_fds{job="kettles"}', "{{instance}}"),
          ('max(process_max_fds{job="kettles"})', "max")),
    panel("Memory", "bytes", "Resident, and of it what no file stands behind.",
          ('sum(process_resident_memory_bytes{job="kettles"})', "resident"),
          ("sum(process_anonymous_memory_bytes)", "anonymous")),
    panel("Pressure", "percentunit", "Part of the time in which its group, or somebody, waited.",
          (f"max by (resource, scope) (rate(pressure_waiting_seconds_total[{RATE}]))",
           "{{resource}} of the {{scope}}")),
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
