"""The programs that the rig started, with their logs and addresses. It stops no others.

Run as a program, this file is the watcher process: it reads from its standard input which programs the
rig has started. At the end of the input it stops those that still run, and removes the rig's folders, so
a rig that was killed leaves nothing behind.
"""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1
# Time limit for a program to stop.
END_S = 15
SIGNALS = [signal.SIGTERM, signal.SIGINT]
LIBC = ctypes.CDLL(None)


def say(text):
    print(f"rig: {text}", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def start_of(pid):
    """The start time of a process, which with its PID identifies it; None if there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name before the parenthesis may contain anything.
    fields = text.rsplit(") ", 1)[1].split()
    return None if fields[0] == "Z" else fields[19]


def write_owner(file):
    file.write_text(f"{os.getpid()} {start_of(os.getpid())}\n")


def owner_of(file):
    """The process that wrote this file; None if it has ended."""
    try:
        if file.lstat().st_uid != os.geteuid():
            return None
        pid, start = file.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if start_of(pid) == start else None


class Child:
    def __init__(self, name, command, log, ending, **options):
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self.ending = ending
        # In its own session, so that Ctrl-C does not reach it twice. The watcher stops it when
        # this program ends in any way.
        parent = os.getpid()

        def end_with_parent():
            LIBC.prctl(PR_SET_PDEATHSIG, ending)
            if os.getppid() != parent:
                os.kill(os.getpid(), ending)

        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=log.open("w"),
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=end_with_parent, **options,
        )

    def has_ended(self):
        return self.process.poll() is not None

    def said(self):
        return f"rig: {self.name} has ended\n{self.log.read_text()[-2000:]}"

    def end(self):
        if not self.has_ended():
            self.process.send_signal(self.ending)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                say(f"{self.name} did not stop in time and is killed")
        try:
            # Signals the whole process group.
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Rig:
    def __init__(self, data):
        self.data = data
        self.children = []
        self.rows = []
        self.jobs = {}
        # Prefixes of the metrics of parts that do not run.
        self.absent = set()
        data.mkdir(parents=True, exist_ok=True)
        self.watcher = subprocess.Popen(
            [sys.executable, "-B", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True, text=True, bufsize=1,
        )

    def leaves(self, folder):
        """Registers a folder to be removed at the end."""
        print("folder", folder, file=self.watcher.stdin)

    def lacks(self, prefix, what, package):
        """Records that an exporter is not installed."""
        say(f"no {what}: {package} is not installed")
        self.absent.add(prefix)

    def start(self, name, command, env=None, ending=signal.SIGTERM, **options):
        child = Child(
            name, command, self.data / f"{name}.log", ending,
            env={**os.environ, **(env or {})}, **options,
        )
        self.children.append(child)
        pid = child.process.pid
        print("child", f"{pid} {start_of(pid)}", file=self.watcher.stdin)
        return child

    def wait(self, child, is_up, what, seconds=60):
        end = time.monotonic() + seconds
        while not is_up():
            if child.has_ended():
                raise SystemExit(child.said())
            if time.monotonic() > end:
                raise SystemExit(f"rig: {child.name} does not answer ({what}); see {child.log}")
            time.sleep(0.1)

    def answers(self, child, url):
        """Waits until `url` answers, with any status."""
        def is_up():
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except urllib.error.HTTPError:
                pass
            except OSError:
                return False
            return True

        self.wait(child, is_up, url)

    def serve(self, name, job, at, command, path="/metrics", **options):
        """Starts a program that Prometheus scrapes on port `at` as job `job`."""
        child = self.start(name, command, **options)
        self.answers(child, f"http://127.0.0.1:{at}{path}")
        self.jobs[job] = [f"127.0.0.1:{at}"]
        return child

    def add(self, name, what, where):
        self.rows.append((name, what, where))

    def table(self):
        name_len, where_len = (max(len(row[column]) for row in self.rows) for column in (0, 2))
        for name, what, where in self.rows:
            print(f"{name:<{name_len}}  {where:<{where_len}}  {what}")
        sys.stdout.flush()

    def names(self):
        """Matchers of prometheus-process-exporter for the started programs."""
        return [
            {"name": child.name, "cmdline": [re.escape(" ".join(child.command))]}
            for child in self.children
        ]

    def watch(self):
        """Waits for a signal, or until a program has ended."""
        while True:
            time.sleep(1)
            for child in self.children:
                if child.has_ended():
                    raise SystemExit(child.said())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A second Ctrl-C takes effect after the programs were stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for child in reversed(self.children):
            child.end()
        self.watcher.stdin.close()
        self.watcher.wait()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def watch_over():
    """Runs until the rig ends or is killed; then stops its programs."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    children, folders = [], []
    for line in sys.stdin:
        what, where = line.rstrip("\n").split(" ", 1)
        if what == "folder":
            folders.append(where)
        else:
            children.append(where.split())
    end = time.monotonic() + END_S
    while any(start_of(pid) == start for pid, start in children) and time.monotonic() < end:
        time.sleep(0.05)
    for pid, start in children:
        # The PID may have been reused.
        if start_of(pid) in (None, start):
            try:
                os.killpg(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch_over()
