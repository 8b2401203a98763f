-- How it is divided by time follows where it is made: this is no whole statement.
-- The time leads in the key, because it grows: rows are added at one end, wherever they come from.
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
)
