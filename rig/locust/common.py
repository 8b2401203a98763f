"""Shared by all Locust files: /metrics for Prometheus, on Locust's web address.

The nine metrics have the names of the 2017 study, so its dashboards still work. Unlike in 2017, no series
is exported twice, every series with an endpoint label has a method label, and there is a histogram.
"""

import itertools
import select

import flask
from gevent import monkey
from geventhttpclient.connectionpool import ConnectionPool
from locust import events

STATES_RUNNING = {"spawning", "running"}
OF_ENTRIES = [
    ("locust_request_count", "counter", "num_requests", "Requests since the start."),
    ("locust_request_per_second", "gauge", "current_rps", "Requests per second, current."),
    ("locust_failed_requests", "counter", "num_failures", "Requests that failed."),
    ("locust_average_response", "gauge", "avg_response_time", "Mean response time since the start, in ms."),
    ("locust_average_content_length", "gauge", "avg_content_length", "Mean body length."),
    ("locust_max_response_time", "gauge", "max_response_time", "Longest response time since the start, in ms."),
]
OFFERED = "Requests per second that the users offer."
# In milliseconds; Locust keeps response times rounded to two digits.
BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000]

POLL = monkey.get_original("select", "poll")


def is_alive(_, connection):
    """Whether an idle connection is still open. Replaces a check by select(), which fails for
    descriptors above 1023, so that the client reconnected for each request."""
    if connection is None or connection.fileno() < 0:
        return False
    poll = POLL()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


ConnectionPool._is_socket_alive = is_alive


def label(text):
    """Escapes a label value."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def family(name, kind, about, samples):
    """Lines of one metric; samples are (labels, value) pairs."""
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value}"


def labels_of(entry):
    return f"endpoint={label(entry.name)},method={label(entry.method)}"


def histogram(entries):
    name = "locust_response_time_seconds"
    yield f"# HELP {name} Response times, rounded by Locust."
    yield f"# TYPE {name} histogram"
    for entry in entries:
        labels = labels_of(entry)
        times = dict(entry.response_times)
        for bound in BOUNDS:
            count = sum(n for time, n in times.items() if time <= bound)
            yield f'{name}_bucket{{{labels},le="{bound / 1000}"}} {count}'
        count = sum(times.values())
        yield f'{name}_bucket{{{labels},le="+Inf"}} {count}'
        yield f"{name}_sum{{{labels}}} {entry.total_response_time / 1000}"
        yield f"{name}_count{{{labels}}} {count}"


def offered(environment):
    """The offered load, in requests per second."""
    runner = environment.runner
    # With worker processes, the users belong to them.
    counts = getattr(runner, "reported_user_classes_count", None) or runner.user_classes_count
    rates = {cls.__name__: getattr(cls, "requests_per_second", 0) for cls in environment.user_classes}
    return sum(count * rates.get(name, 0) for name, count in counts.items())


def text(environment):
    runner = environment.runner
    entries = sorted(runner.stats.entries.values(), key=lambda it: (it.name, it.method))
    site = f"site={label(environment.host)}"
    of_site = [
        ("locust_running", "Whether the load test runs.", int(runner.state in STATES_RUNNING)),
        ("locust_workers", "Worker processes.", getattr(runner, "worker_count", 0)),
        ("locust_users", "Its users.", runner.user_count),
        ("locust_offered_per_second", OFFERED, offered(environment)),
    ]
    lines = itertools.chain(
        *(
            family(name, kind, about, [(labels_of(it), getattr(it, of)) for it in entries])
            for name, kind, of, about in OF_ENTRIES
        ),
        *(family(name, "gauge", about, [(site, value)]) for name, about, value in of_site),
        histogram(entries),
    )
    return "\n".join(lines) + "\n"


@events.init.add_listener
def serve_metrics(environment, **_):
    if environment.web_ui is None:
        return

    @environment.web_ui.app.route("/metrics")
    def metrics():
        return flask.Response(text(environment), mimetype="text/plain; version=0.0.4")
