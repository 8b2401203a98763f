#!/usr/bin/env python3
"""Writes dashboards/{original,use,kettles,nodes}.json; with --check, says whether they are as written.

A panel is defined by a title, a unit, a description, and its queries with their legends. All other
properties are the same for all panels.

A server may have several processes. Their counters are summed, and values that all processes share are
shown once. Values with a limit per process are shown for each process, or for the one nearest its limit.
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


# The eight panels of 2017, in their order, with queries in today's metric names; process memory
# replaces that of the Haskell runtime.
ORIGINAL = [
    panel("Total Requests Per Second", "ops", "Requests completed by Locust.",
          ("locust_request_per_second", "{{method}} {{endpoint}}")),
    panel("Average Response Time", "ms", "Mean since the start, measured by Locust.",
          ("locust_average_response", "{{method}} {{endpoint}}")),
    panel("Number of users", "short", "Simulated users of Locust.", ("locust_users", "users")),
    panel("Node CPU", "percentunit", "CPU use by core.",
          ('1.0 - irate(node_cpu_seconds_total{job="node",mode="idle"}[30s])', "{{cpu}}")),
    panel("App Server CPU Usage", "percentunit", "CPU use of the server and its database.",
          ('sum by (job) (rate(process_cpu_seconds_total{job=~"kettles|samovar"}[30s]))', "{{job}}"),
          ('sum by (groupname) (rate(namedprocess_namegroup_cpu_seconds_total[30s]))',
           "{{groupname}}")),
    panel("Node Memory Utilization", "bytes", "Memory in use.",
          ("node_memory_Active_bytes", "active")),
    panel("Measurements recorded", "short", "Measurements stored since the server started.",
          ("sum(app_measurements_total)", "recorded")),
    panel("Server Memory", "bytes", "Resident memory of the server.",
          ('sum by (job) (process_resident_memory_bytes{job=~"kettles|samovar"})', "{{job}}")),
]


def resource(title, utilisation, saturation, errors):
    """A row of the USE table: three panels (unit, description, queries)."""
    yield row(title)
    for name, (unit, about, *queries) in zip(
        ("Utilisation", "Saturation", "Errors"), (utilisation, saturation, errors)
    ):
        # A resource without an error metric has another panel in the third column.
        own, _, about = about.rpartition(": ")
        yield panel(own or name, unit, about, *queries)


def per_second(series, by=""):
    return f"sum by ({by}) (rate({series}[{RATE}]))"


def times(histogram, by=""):
    """Queries for the median and the 99th percentile of a histogram in seconds."""
    rates = per_second(f"{histogram}_bucket", f"{by}, le" if by else "le")
    name = f"{{{{{by}}}}}, " if by else ""
    for part, legend in ((0.5, "median"), (0.99, "p99")):
        yield f"histogram_quantile({part}, {rates})", f"{name}{legend}"


# Rows for both kinds of server; rows for only one of them begin with its name.
SERVERS = '{job=~"kettles|samovar"}'
REQUESTS = "http_request_duration_seconds_count"
USE = [
    *resource(
        "Processors",
        ("percentunit", "Share of all cores.",
         (f'1 - avg(rate(node_cpu_seconds_total{{mode="idle"}}[{RATE}]))', "busy")),
        ("percentunit", "Share of time in which a task waited (PSI).",
         (f"rate(node_pressure_cpu_waiting_seconds_total[{RATE}])", "waiting")),
        ("percentunit", "By program: CPU use; 1 is one core.",
         (per_second("namedprocess_namegroup_cpu_seconds_total", "groupname"), "{{groupname}}")),
    ),
    *resource(
        "Memory",
        ("percentunit", "Used memory, and the server's share of all.",
         ("1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes", "used"),
         (f"sum by (job) (process_resident_memory_bytes{SERVERS}) / scalar(node_memory_MemTotal_bytes)",
          "{{job}}")),
        ("percentunit", "Share of time in which a task waited (PSI).",
         (f"rate(node_pressure_memory_waiting_seconds_total[{RATE}])", "waiting")),
        ("cps", "Programs ended by the OOM killer.",
         (f"rate(node_vmstat_oom_kill[{RATE}])", "killed")),
    ),
    *resource(
        "Disks",
        ("percentunit", "Share of time with a request in progress.",
         (f"rate(node_disk_io_time_seconds_total[{RATE}])", "{{device}}")),
        ("percentunit", "Share of time in which a task waited (PSI).",
         (f"rate(node_pressure_io_waiting_seconds_total[{RATE}])", "waiting")),
        ("Bps", "Written: bytes by disk.",
         (f"rate(node_disk_written_bytes_total[{RATE}])", "{{device}}")),
    ),
    *resource(
        "Network",
        ("Bps", "Bytes received and sent, loopback included.",
         (f"sum(rate(node_network_receive_bytes_total[{RATE}])) + "
          f"sum(rate(node_network_transmit_bytes_total[{RATE}]))", "bytes")),
        ("cps", "Accept queue overflows, and TCP retransmissions.",
         (f"rate(node_netstat_TcpExt_ListenOverflows[{RATE}])", "overflows"),
         (f"rate(node_netstat_Tcp_RetransSegs[{RATE}])", "sent again")),
        ("cps", "Connections ended by a reset.",
         (f"rate(node_netstat_Tcp_OutRsts[{RATE}])", "resets")),
    ),
    *resource(
        "Descriptors",
        ("percentunit", "Share of the limit; the fullest process.",
         (f"max by (job) (process_open_fds{SERVERS} / process_max_fds{SERVERS})", "{{job}}")),
        ("cps", "Connections refused at the limit.",
         (f'sum(rate(engine_accept_errors_total{{reason="full"}}[{RATE}])) or '
          f'sum(rate(samovar_events_total{{event=~"connections_full|connection_evicted"}}[{RATE}]))', "full")),
        ("cps", "Connections refused for lack of descriptors or memory.",
         (f'sum(rate(engine_accept_errors_total{{reason!="full"}}[{RATE}])) or '
          f'sum(rate(samovar_events_total{{event="accept_failed"}}[{RATE}]))', "not accepted")),
    ),
    *resource(
        "The engine's threads",
        ("percentunit", "CPU use; 1 is one core.",
         (f"{per_second('engine_worker_busy_seconds_total', 'worker')} or "
          f"label_replace({per_second('samovar_io_thread_busy_seconds_total', 'thread')}, "
          '"worker", "io $1", "thread", "(.*)")', "{{worker}}")),
        ("s", "I/O loop lag; a cache exports only its latest value.",
         *((f"{expr} or samovar_io_loop_lag_seconds", legend)
           for expr, legend in times("engine_loop_lag_seconds"))),
        ("cps", "5xx responses.",
         (f'sum(rate({REQUESTS}{{status_code=~"5.."}}[{RATE}])) or 0 * sum(rate({REQUESTS}[{RATE}])) '
          f'or sum(rate(samovar_http_requests_total{{status="5xx"}}[{RATE}])) or '
          f"0 * sum(rate(samovar_http_requests_total[{RATE}]))", "5xx")),
    ),
    *resource(
        "Kettles: the queue",
        ("percentunit", "Share of the queue in use; the fullest process.",
         ("max(instance:kettles_queue:ratio)", "rows")),
        ("s", "Time requests spent in the queue, and age of its oldest row.",
         *times("kettles_ingest_wait_seconds"),
         ("max(kettles_ingest_oldest_seconds)", "oldest")),
        ("cps", "Rows answered with 503.",
         (per_second("kettles_ingest_rejected_total", "reason"), "{{reason}}")),
    ),
    *resource(
        "Kettles: the store",
        ("percentunit", "Share of time spent in commits; the busiest process.",
         (f"max(rate(kettles_ingest_commit_seconds_sum[{RATE}]))", "committing")),
        ("short", "Rows per commit: batches grow when commits are slow.",
         (f"{per_second('kettles_ingest_batch_rows_sum')} / "
          f"{per_second('kettles_ingest_batch_rows_count')}", "rows")),
        ("cps", "Commits that failed.",
         (per_second("kettles_ingest_commit_failures_total"), "failed")),
    ),
    panel("Commit", "s", "Duration of commits.", *times("kettles_ingest_commit_seconds")),
    panel("Commit: fsync", "s", "Time until the log was on disk; for PostgreSQL, its COMMIT.",
          *times("kettles_ingest_sync_seconds")),
    *resource(
        "PostgreSQL: connections",
        ("percentunit", "Share of connections that are active or in a transaction.",
         ('(sum(pg_backends_count{state!="idle"}) or vector(0)) / sum(pg_backends_count)', "taken")),
        ("short", "Requests waiting.",
         ("replay_waiting_requests or kettles_ingest_queue_rows", "waiting, {{instance}}")),
        ("short", "By state: connections.",
         ("sum by (state) (pg_backends_count)", "{{state}}")),
    ),
    *resource(
        "PostgreSQL: the server",
        ("short", "Mean number of running statements.",
         (f"sum(rate(pg_stat_database_active_time[{RATE}])) / 1000", "running")),
        ("short", "Wait events of its connections; Client means waiting for the client.",
         ("sum by (wait) (pg_backends_count)", "{{wait}}")),
        ("cps", "Deadlocks, and rolled-back transactions.",
         (f"sum(rate(pg_stat_database_deadlocks[{RATE}]))", "deadlocks"),
         (f"sum(rate(pg_stat_database_xact_rollback[{RATE}]))", "undone")),
    ),
    *resource(
        "Cache: bodies",
        ("Bps", "Bytes of NARs, and of all other responses.",
         (f"sum(rate(samovar_http_response_body_bytes_total[{RATE}]))", "sent")),
        ("percentunit", "Share of the body memory budget in use.",
         ("samovar_body_memory_bytes / samovar_body_memory_max_bytes", "memory")),
        ("cps", "Responses not sent completely.",
         (f"sum(rate(samovar_http_responses_aborted_total[{RATE}]))", "aborted")),
    ),
    *resource(
        "Cache: workers",
        ("percentunit", "Share of workers that are busy.",
         ("samovar_workers_busy / samovar_workers_max", "busy")),
        ("short", "Requests waiting.", ("samovar_workers_queued", "waiting")),
        ("cps", "Errors of the store.", (f"sum(rate(samovar_store_errors_total[{RATE}]))", "failed")),
    ),
]

SECONDS = "http_request_duration_seconds"
KETTLES = [
    row("Requests"),
    panel("Requests", "reqps", "Requests by handler.",
          (f"sum by (handler) (rate({SECONDS}_count[{RATE}]))", "{{handler}}")),
    panel("Measurements", "ops", "Stored durably.",
          (per_second("app_measurements_total"), "stored"),
          (per_second("kettles_ingest_duplicates_total"), "there already"),
          (per_second("kettles_pruned_total"), "expired")),
    panel("Devices", "short", "Known devices, and those recently active at each server.",
          ("max(kettles_devices)", "known"), ("kettles_active_devices", "active, {{instance}}")),
    row("How well"),
    panel("Latency, median", "s", "Time from the end of a request to the end of its response.",
          (f"histogram_quantile(0.5, {per_second(SECONDS + '_bucket', 'handler, le')})",
           "{{handler}}")),
    panel("Latency, p99", "s", "Time from the end of a request to the end of its response.",
          (f"histogram_quantile(0.99, {per_second(SECONDS + '_bucket', 'handler, le')})",
           "{{handler}}")),
    panel("Answers by status", "reqps", "503 is back-pressure; other statuses from 400 on are errors.",
          (f"sum by (status_code) (rate({SECONDS}_count[{RATE}]))", "{{status_code}}")),
    row("Queue and store"),
    panel("Queue", "percentunit", "Saturation: share of the queue in use.",
          ("instance:kettles_queue:ratio", "{{instance}}")),
    panel("Oldest row", "s", "Age of the oldest row in the queue.",
          ("kettles_ingest_oldest_seconds", "{{instance}}")),
    panel("Refused", "ops", "Rows answered with 503, and commits that failed.",
          (per_second("kettles_ingest_rejected_total", "reason"), "{{reason}}"),
          (per_second("kettles_ingest_commit_failures_total"), "commits failed")),
    panel("Wait", "s", "Time requests spent in the queue.",
          *times("kettles_ingest_wait_seconds")),
    panel("Commit time", "s", "Duration of commits.",
          *times("kettles_ingest_commit_seconds")),
    panel("Commit: fsync", "s", "Time until the log was on disk; for PostgreSQL, its COMMIT.",
          *times("kettles_ingest_sync_seconds")),
    panel("Commits", "percentunit", "Utilisation: share of time spent in commits.",
          (f"rate(kettles_ingest_commit_seconds_sum[{RATE}])", "{{instance}}")),
    panel("Rows per commit", "short", "Larger batches make each row cheaper.",
          (f"rate(kettles_ingest_batch_rows_sum[{RATE}]) / "
           f"rate(kettles_ingest_batch_rows_count[{RATE}])", "{{instance}}")),
    row("The engine"),
    panel("Threads", "percentunit", "Utilisation: CPU use by thread; 1 is one core.",
          (per_second("engine_worker_busy_seconds_total", "worker"), "{{worker}}"),
          stacked=True),
    panel("Loop lag", "s", "Saturation: time until all I/O threads answered a probe.",
          *times("engine_loop_lag_seconds", "instance")),
    panel("Workers", "short", "Running workers, and jobs waiting for one.",
          ("sum(engine_workers_running)", "running"), ("sum(engine_requests_queued)", "queued")),
    panel("Connections", "short", "Open connections, their limit, and the accept queue.",
          ("sum by (state) (engine_connections)", "{{state}}"), ("max(engine_backlog)", "waiting")),
    panel("Refused connections", "cps", "Connections refused, and other events.",
          (per_second("engine_accept_errors_total", "reason"), "{{reason}}"),
          (per_second("engine_incidents_total"), "incidents"),
          (per_second("engine_accepted_total"), "accepted")),
    panel("Descriptors", "short", "Open file descriptors by process, and the limit.",
          ('process_open_fds{job="kettles"}', "{{instance}}"),
          ('max(process_max_fds{job="kettles"})', "max")),
    panel("Memory", "bytes", "Resident memory, and its anonymous part.",
          ('sum(process_resident_memory_bytes{job="kettles"})', "resident"),
          ("sum(process_anonymous_memory_bytes)", "anonymous")),
    panel("Pressure", "percentunit", "Share of time in which tasks of its control group, or of the machine, waited (PSI).",
          (f"max by (resource, scope) (rate(pressure_waiting_seconds_total[{RATE}]))",
           "{{resource}} of the {{scope}}")),
    row("The balancer"),
    panel("Requests by server", "reqps", "Responses that haproxy forwarded.",
          (f'sum by (server) (rate(haproxy_server_http_responses_total{{proxy="servers"}}[{RATE}]))',
           "{{server}}")),
    panel("Requests in progress", "short", "By server, and those that wait for a server.",
          ('haproxy_server_current_sessions{proxy="servers"}', "{{server}}"),
          ('haproxy_backend_current_queue{proxy="servers"}', "waiting")),
    panel("Errors of servers", "cps", "Failed connections and responses, and failed checks.",
          (f'sum by (server) (rate(haproxy_server_connection_errors_total{{proxy="servers"}}[{RATE}]))',
           "{{server}}, connections"),
          (f'sum by (server) (rate(haproxy_server_response_errors_total{{proxy="servers"}}[{RATE}]))',
           "{{server}}, responses"),
          (f'sum by (server) (rate(haproxy_server_check_failures_total{{proxy="servers"}}[{RATE}]))',
           "{{server}}, checks")),
    row("The load"),
    panel("Offered and answered", "reqps", "Offered load and completed requests.",
          ("sum(locust_offered_per_second)", "offered"),
          (f'sum(rate({SECONDS}_count{{handler=~"command|measurement|login"}}[{RATE}]))', "answered")),
    panel("Locust's response times", "s", "99th percentile, including the overhead of Locust.",
          (f"histogram_quantile(0.99, sum by (endpoint, le) "
           f"(rate(locust_response_time_seconds_bucket[{RATE}])))", "{{endpoint}}")),
    panel("Locust's failures", "cps", "By endpoint.",
          (f"rate(locust_failed_requests[{RATE}])", "{{endpoint}}")),
]

NODES = [
    row("Bucket"),
    panel("Reachable", "short", "1: the last request to the bucket, or the last statement of the database, was "
          "answered.",
          ("samovar_bucket_up", "bucket, {{instance}}"), ("samovar_database_up", "database, {{instance}}")),
    panel("Requests", "reqps", "Requests to the bucket, by kind and result. S3 engines charge for them.",
          (f"sum by (kind, result) (rate(samovar_bucket_requests_total[{RATE}]))", "{{kind}}, {{result}}"),
          (f"sum(rate(samovar_bucket_retries_total[{RATE}]))", "sent again")),
    panel("Mean time of a request", "s", "With all its attempts.",
          (f"sum by (kind) (rate(samovar_bucket_request_seconds_sum[{RATE}])) / "
           f"sum by (kind) (rate(samovar_bucket_request_seconds_count[{RATE}]))", "{{kind}}")),
    panel("In progress", "short", "Requests to the bucket. The limit falls if the engine is overloaded.",
          ("samovar_bucket_requests_running", "{{instance}}"),
          ("samovar_bucket_requests_running_max", "limit of {{instance}}")),
    panel("Bytes", "Bps", "Between the nodes and the bucket.",
          (f"sum(rate(samovar_bucket_sent_bytes_total[{RATE}]))", "sent"),
          (f"sum(rate(samovar_bucket_received_bytes_total[{RATE}]))", "received")),
    panel("Redirects", "reqps", "Downloads for which clients were sent to the bucket.",
          (f"sum(rate(samovar_bucket_redirects_total[{RATE}]))", "redirects")),
    row("Disk cache"),
    panel("Files read", "reqps", "A file that the disk cache lacks is downloaded from the bucket.",
          (f"rate(samovar_bucket_cache_hits_total[{RATE}])", "found, {{instance}}"),
          (f"rate(samovar_bucket_cache_misses_total[{RATE}])", "downloaded, {{instance}}"),
          (f"rate(samovar_bucket_cache_evictions_total[{RATE}])", "removed for room, {{instance}}")),
    panel("Size", "bytes", "Of the disk cache.",
          ("samovar_bucket_cache_bytes", "{{instance}}"),
          ("samovar_bucket_cache_max_bytes", "limit of {{instance}}")),
    panel("Files", "short", "In the disk cache.", ("samovar_bucket_cache_files", "{{instance}}")),
    row("Database"),
    panel("Transactions", "ops", "By kind and result.",
          (f"sum by (kind, result) (rate(samovar_database_transactions_total[{RATE}]))",
           "{{kind}}, {{result}}")),
    panel("Mean time of a transaction", "s", "And of the wait before it, for a connection or for the turn to write.",
          (f"sum by (kind) (rate(samovar_database_transaction_seconds_sum[{RATE}])) / "
           f"sum by (kind) (rate(samovar_database_transaction_seconds_count[{RATE}]))", "{{kind}}"),
          (f"sum by (kind) (rate(samovar_database_wait_seconds_sum[{RATE}])) / "
           f"sum by (kind) (rate(samovar_database_wait_seconds_count[{RATE}]))", "wait, {{kind}}")),
    panel("Connections", "short", "Open ones, and new ones per second.",
          ("samovar_database_connections", "{{instance}}"),
          (f"rate(samovar_database_connects_total[{RATE}])", "new, {{instance}}")),
    row("Nodes"),
    panel("Leases", "short", "1: the node answers from memory. 0: it asks the database for each path.",
          ("samovar_node_lease", "{{instance}}"),
          ("max by (lease) (samovar_node_count)", "nodes, lease: {{lease}}")),
    panel("Delay of a node", "s", "Time since its lease was renewed, which is done twice a second.",
          ("samovar_node_lease_age_seconds", "{{instance}}")),
    panel("Commits behind", "short", "Commits whose changes the node has not confirmed.",
          ("samovar_node_behind_commits", "{{instance}}")),
    panel("Mean wait of a commit for all nodes", "s", "An upload is acknowledged after it.",
          (f"rate(samovar_node_publish_wait_seconds_sum[{RATE}]) / "
           f"rate(samovar_node_publish_wait_seconds_count[{RATE}])", "{{instance}}")),
]

DASHBOARDS = {
    "nodes.json": dashboard("samovar-nodes", "Samovar: nodes, bucket and database", NODES, 8),
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
        sys.exit(f"make.py: not up to date, run rig/grafana/make.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
