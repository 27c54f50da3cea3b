-- What an event is about beside its columns: an operation may work on several daemons and GPUs, and is found by each of them.
-- Only what has several has rows here.
CREATE TABLE event_also (
    event INTEGER NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    kind  TEXT NOT NULL CHECK (kind IN ('daemon', 'gpu')),
    name  TEXT NOT NULL,
    PRIMARY KEY (event, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_also_by_name ON event_also (kind, name, event);
