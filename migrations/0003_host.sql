-- The host that this database belongs to: one row, or none before the first start that knew of it. `none` is the ID of
-- a host without one.
CREATE TABLE host (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    machine_id TEXT NOT NULL,
    written_at INTEGER NOT NULL
) STRICT;

-- What a GPU that a daemon holds was when it was last here, for the time when it is not.
CREATE TABLE gpus (
    uuid    TEXT PRIMARY KEY,
    facts   TEXT NOT NULL CHECK (json_valid(facts)),
    seen_at INTEGER NOT NULL
) STRICT;
