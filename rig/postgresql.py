"""The rig's own PostgreSQL: in a temporary folder, on a Unix socket, removed with the rig."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

from started import owner_of, say, write_owner

# Queries for wait events, which the exporter does not export by itself.
QUERIES = pathlib.Path(__file__).parent / "prometheus/postgresql.yml"
# A check that somebody has added to the database, in a trigger: it compares each measurement with the
# mean of its kettle, and reads a whole index for that, because none begins with the kettle.
CHECK = """
CREATE FUNCTION check_measurement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF abs(NEW.water_temp - (SELECT avg(water_temp) FROM measurement WHERE device_id = NEW.device_id)) > 200 THEN
    RAISE WARNING 'implausible temperature of kettle %', NEW.device_id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER check_measurement AFTER INSERT ON measurement FOR EACH ROW EXECUTE FUNCTION check_measurement();
"""
# Prefix of the servers' folders, and the file in each with the owning rig.
PREFIX = "rig-postgresql-"
OWNER = "owner"
# PostgreSQL refuses to run as root.
USER = {"user": "postgres", "group": "postgres", "extra_groups": []}


def programs():
    """The newest PostgreSQL of Debian, which is not in PATH."""
    found = pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")
    folders = sorted((it.parent for it in found), key=lambda it: int(it.parent.name))
    if folders:
        return folders[-1]
    if binary := shutil.which("initdb"):
        return pathlib.Path(binary).parent
    raise SystemExit("rig: PostgreSQL is not installed")


def remove_orphans():
    """Removes folders of rigs that were killed together with their watchers."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = folder / OWNER
        try:
            is_mine = owner.lstat().st_uid == os.geteuid() and not folder.is_symlink()
        except OSError:
            continue
        # Its PostgreSQL is still stopping.
        if is_mine and owner_of(owner) is None and not in_use(folder):
            say(f"removing {folder}, left by a rig that was killed")
            shutil.rmtree(folder, ignore_errors=True)


def in_use(folder):
    """Whether a PostgreSQL runs in the folder."""
    try:
        pid = (folder / "data/postmaster.pid").read_text().split("\n")[0]
        return os.readlink(f"/proc/{pid}/cwd").startswith(str(folder))
    except OSError:
        return False


def start(rig):
    """Starts a PostgreSQL and returns its URL."""
    remove_orphans()
    folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX))
    rig.leaves(folder)
    write_owner(folder / OWNER)
    options = {"cwd": folder}
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        options.update(USER)
    binaries = programs()
    initdb = [
        binaries / "initdb", "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8",
        "--locale=C", "--pgdata", folder / "data",
    ]
    made = subprocess.run(initdb, capture_output=True, text=True, **options)
    if made.returncode != 0:
        raise SystemExit(f"rig: initdb failed\n{made.stdout}{made.stderr}")
    command = [
        binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=",
        "-c", "shared_buffers=128MB",
    ]
    # Fast shutdown: does not wait for clients.
    child = rig.start("postgresql", command, ending=signal.SIGINT, **options)
    ready = [binaries / "pg_isready", "--quiet", "--host", folder]
    rig.wait(child, lambda: subprocess.run(ready).returncode == 0, folder)
    rig.psql = [binaries / "psql", "--host", folder, "--username", "postgres"]
    rig.add("postgresql", "the database", f"psql --host {folder} --username postgres")
    return f"postgresql:///postgres?host={folder}&user=postgres"


def slow_down(rig):
    """Makes the database the bottleneck."""
    command = [*rig.psql, "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--command", CHECK]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"rig: the database cannot be made the bottleneck\n{done.stderr}")


def start_exporter(rig, url, at):
    binary = shutil.which("prometheus-postgres-exporter")
    if not binary:
        return rig.lacks("pg_", "metrics of PostgreSQL", "prometheus-postgres-exporter")
    # The exporter's library requires TLS by default.
    if "sslmode=" not in url:
        url += ("&" if re.search(r"\?.", url) else "?") + "sslmode=disable"
    command = [
        binary, f"--web.listen-address=127.0.0.1:{at}", f"--extend.query-path={QUERIES}"
    ]
    rig.serve("postgres-exporter", "postgres", at, command, env={"DATA_SOURCE_NAME": url})
