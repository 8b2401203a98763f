-- As the original had it, but for TimescaleDB: rows have no key, and devices are referenced.
CREATE SCHEMA IF NOT EXISTS replay_2017;

CREATE TABLE IF NOT EXISTS replay_2017.device (
    id uuid PRIMARY KEY
);

CREATE TABLE IF NOT EXISTS replay_2017.measurement (
    device_id uuid NOT NULL REFERENCES replay_2017.device,
    time timestamptz NOT NULL,
    charge_now integer NOT NULL,
    charge_full integer NOT NULL,
    charge_rate double precision NOT NULL,
    ambient_temp double precision NOT NULL,
    water_temp double precision NOT NULL,
    water_level integer NOT NULL
);

CREATE INDEX IF NOT EXISTS measurement_time ON replay_2017.measurement (time DESC);
