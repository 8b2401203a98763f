-- Instead of partitions, where an administrator has installed TimescaleDB.
CREATE EXTENSION IF NOT EXISTS timescaledb;

CREATE TABLE measurement (
    time timestamptz NOT NULL,
    device_id uuid NOT NULL,
    charge_now integer NOT NULL,
    charge_full integer NOT NULL,
    charge_rate double precision NOT NULL,
    ambient_temp double precision NOT NULL,
    water_temp double precision NOT NULL,
    water_level integer NOT NULL,
    PRIMARY KEY (time, device_id)
);

SELECT create_hypertable(
    'measurement', 'time',
    chunk_time_interval => interval '1 day', create_default_indexes => false
);
