-- Run at each start: it may be there already.

-- Hours of the day in which a kettle has sent measurements, and in which it has boiled: a bit for each.
CREATE TABLE IF NOT EXISTS habit (
    device BLOB NOT NULL PRIMARY KEY,
    seen INTEGER NOT NULL,
    boiled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
