"""Kettles, for Locust: `locust -f kettles.py --host http://127.0.0.1:8080 Honest`.

`As2017` sends the load of the 2017 study: every 25 to 35 seconds, one of two requests at random, which is
half of what kettles send. `Honest` sends both requests every 30 seconds. There are two differences from
2017: the HTTP client takes a fifth of the CPU time, and measurements have a time that really is in UTC, as
its "Z" says.

Locust takes about a hundred times as much CPU time per request as the server. So use it to test behaviour,
and `swarm` to measure latencies.
"""

import random
from datetime import datetime, timezone

import common  # noqa: F401  (serves /metrics)
from locust import FastHttpUser, between, constant_pacing, task


class Kettle(FastHttpUser):
    abstract = True
    connection_timeout = 30
    network_timeout = 30

    def on_start(self):
        with self.client.post("/login", json={"username": ""}, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            self.headers = {"servant-auth-cookie": answer.json()["username"]}

    headers = None

    def command(self):
        self.client.get("/command", headers=self.headers)

    def measure(self):
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        measurement = {
            "time": now,
            "charge_now": random.randint(0, 100),
            "charge_full": 100,
            "charge_rate": random.uniform(-100, 100),
            "ambient_temp": random.uniform(20, 60),
            "water_temp": random.uniform(20, 60),
            "water_level": random.randint(0, 100),
        }
        self.client.post("/measurement", json=measurement, headers=self.headers)


class As2017(Kettle):
    wait_time = between(25, 35)
    requests_per_second = 1 / 30

    @task
    def command_task(self):
        self.command()

    @task
    def measure_task(self):
        self.measure()


class Honest(Kettle):
    wait_time = constant_pacing(30)
    requests_per_second = 2 / 30

    @task
    def turn(self):
        self.command()
        self.measure()
