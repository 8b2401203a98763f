-- Run at each start, under a lock: all of it may be there already.

-- With its newest measurement. Rows change in place, and PostgreSQL tidies up a page whenever it is
-- looked at and less of it is free than the fillfactor says. So rows are made wider than they will be:
-- 39 of them fill a page as far as it may be; all have a second place in it where one transaction
-- changes all; and later some 26 change before it is tidied up.
CREATE TABLE IF NOT EXISTS device (
    id uuid PRIMARY KEY,
    time timestamptz,
    charge_now integer,
    water_level integer,
    ambient_temp double precision,
    water_temp double precision
) WITH (fillfactor = 63);

-- Not at each start: it waits for all who read, and all wait for it.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                   WHERE attrelid = 'device'::regclass AND attname = 'room') THEN
        ALTER TABLE device ADD COLUMN room text;
        ALTER TABLE device ALTER COLUMN room SET DEFAULT repeat(' ', 85), SET (fillfactor = 63);
    END IF;
END $$;

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

-- Hours of the day in which a kettle has sent measurements, and in which it has boiled: a bit for each.
CREATE TABLE IF NOT EXISTS habit (
    device_id uuid PRIMARY KEY,
    seen integer NOT NULL,
    boiled integer NOT NULL
);
