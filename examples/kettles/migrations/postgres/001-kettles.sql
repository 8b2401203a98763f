-- Run at each start, under a lock: all of it may be there already.

-- With its newest measurement. Rows change in place, so pages keep room for that. They are made
-- without one, of 44 bytes, and have 76 later: 51 of them, each a second time where one transaction
-- changes all, and what points from old places to new ones are a page.
CREATE TABLE IF NOT EXISTS device (
    id uuid PRIMARY KEY,
    time timestamptz,
    charge_now integer,
    water_level integer,
    ambient_temp double precision,
    water_temp double precision
) WITH (fillfactor = 28);

-- What was ever measured, and what of it was deleted, by each of the processes that write. Exact,
-- and of the same transaction as the rows they are about. The sum of all rows is the whole.
CREATE TABLE IF NOT EXISTS totals (
    writer integer PRIMARY KEY,
    totals bytea NOT NULL,
    pruned bytea NOT NULL
) WITH (fillfactor = 50);

-- A status of true: confirmed by a measurement; false: a newer one took its place; NULL: to be done.
CREATE TABLE IF NOT EXISTS command (
    device_id uuid NOT NULL,
    time timestamptz NOT NULL,
    charge boolean NOT NULL,
    fill boolean NOT NULL,
    flush double precision,
    status boolean,
    PRIMARY KEY (device_id, time)
);

CREATE INDEX IF NOT EXISTS command_open ON command (device_id) WHERE status IS NULL;
