-- Times are microseconds since 1970 in UTC; names of devices the 16 bytes of their UUID.

-- The time leads, because it grows: rows are added at one end, wherever they come from.
CREATE TABLE measurement (
    time INTEGER NOT NULL,
    device BLOB NOT NULL,
    charge_now INTEGER NOT NULL,
    charge_full INTEGER NOT NULL,
    charge_rate REAL NOT NULL,
    ambient_temp REAL NOT NULL,
    water_temp REAL NOT NULL,
    water_level INTEGER NOT NULL,
    PRIMARY KEY (time, device)
) STRICT, WITHOUT ROWID;

-- With its newest measurement, as far as `change` does not know a newer one.
CREATE TABLE device (
    id BLOB NOT NULL PRIMARY KEY,
    time INTEGER,
    charge_now INTEGER,
    water_level INTEGER,
    ambient_temp REAL,
    water_temp REAL
) STRICT, WITHOUT ROWID;

-- Newest measurements that have not found their way into `device`: one row for each transaction.
CREATE TABLE change (
    number INTEGER PRIMARY KEY,
    latest BLOB NOT NULL
) STRICT;

-- A status of 1: confirmed by a measurement; 0: a newer one took its place; NULL: to be done.
CREATE TABLE command (
    device BLOB NOT NULL,
    time INTEGER NOT NULL,
    charge INTEGER NOT NULL,
    fill INTEGER NOT NULL,
    flush REAL,
    status INTEGER,
    PRIMARY KEY (device, time)
) STRICT, WITHOUT ROWID;

CREATE INDEX command_open ON command (device) WHERE status IS NULL;

-- One row: what was ever measured, and what of it was deleted. Exact, and of the same transaction as
-- the rows they are about.
CREATE TABLE totals (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    totals BLOB NOT NULL,
    pruned BLOB NOT NULL
) STRICT;
