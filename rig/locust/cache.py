"""Nix clients, for Locust: `PATHS=paths.txt locust -f cache.py --host http://127.0.0.1:5000`.

PATHS is a file with the store paths of the cache, one per line, as `nix path-info --all` prints them.
Each client requests nix-cache-info once. Then, repeatedly, it requests the narinfos of many paths, most of
which are absent, and downloads the closure of one path.
"""

import os
import random

import common  # noqa: F401  (serves /metrics)
from locust import FastHttpUser, constant_pacing, task

DIGITS = "0123456789abcdfghijklmnpqrsvwxyz"
QUERIES = 50
MISSES_OF_100 = 80
PERIOD = 10


def hash_of(path):
    return path.strip().rsplit("/", 1)[-1][:32]


with open(os.environ["PATHS"]) as lines:
    PATHS = [hash_of(line) for line in lines if "-" in line]


class Substituter(FastHttpUser):
    wait_time = constant_pacing(PERIOD)
    # Without downloads, whose cost depends on the store.
    requests_per_second = QUERIES / PERIOD

    def on_start(self):
        self.client.get("/nix-cache-info")

    def narinfo(self, path, name, status=200):
        """The fields of a narinfo; None if it is malformed."""
        url = f"/{path}.narinfo"
        with self.client.get(url, name=name, catch_response=True) as answer:
            if answer.status_code != status:
                answer.failure(f"status {answer.status_code}")
                return None
            answer.success()
            lines = (line.split(": ", 1) for line in (answer.text or "").splitlines())
            return dict(line for line in lines if len(line) == 2)

    @task
    def turn(self):
        for _ in range(QUERIES):
            if random.randrange(100) < MISSES_OF_100:
                absent = "".join(random.choices(DIGITS, k=32))
                self.narinfo(absent, "absent", status=404)
            else:
                self.narinfo(random.choice(PATHS), "narinfo")
        todo = [random.choice(PATHS)]
        met = set(todo)
        while todo:
            lines = self.narinfo(todo.pop(), "closure")
            if lines is None:
                continue
            references = {hash_of(name) for name in lines.get("References", "").split()}
            todo.extend(references - met)
            met |= references
            self.nar(lines)

    def nar(self, lines):
        expected = int(lines.get("FileSize") or lines["NarSize"])
        url = "/" + lines["URL"]
        with self.client.get(url, name="nar", catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
            elif len(answer.content) != expected:
                answer.failure("the length differs from the narinfo")
            else:
                answer.success()
