-- What happened, in the order of the commits: AUTOINCREMENT, so that the number of a row that was pruned is never given again.
-- Columns are what is asked for; the rest is the JSON that the API shows.
CREATE TABLE events (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    type      TEXT NOT NULL,
    severity  INTEGER NOT NULL,
    daemon    TEXT,
    gpu       TEXT,
    client    TEXT,
    tenant    TEXT,
    operation TEXT,
    subject   TEXT NOT NULL CHECK (json_valid(subject)),
    cause     TEXT NOT NULL CHECK (json_valid(cause)),
    message   TEXT NOT NULL,
    details   TEXT CHECK (json_valid(details))
) STRICT;
-- Each holds the row's number too, so a page of what is asked for is read in order and stops at its end.
CREATE INDEX events_by_type ON events (type);
CREATE INDEX events_by_daemon ON events (daemon) WHERE daemon IS NOT NULL;
CREATE INDEX events_by_gpu ON events (gpu) WHERE gpu IS NOT NULL;
CREATE INDEX events_by_client ON events (client) WHERE client IS NOT NULL;
CREATE INDEX events_by_tenant ON events (tenant) WHERE tenant IS NOT NULL;
CREATE INDEX events_by_operation ON events (operation) WHERE operation IS NOT NULL;

-- The clients of which it was told that they came, and not that they left: a manager that starts compares them with who is
-- there, so it tells of nobody twice, and of nobody's leaving too late.
CREATE TABLE told_clients (
    daemon        TEXT NOT NULL REFERENCES daemons (name) ON DELETE CASCADE,
    pid           INTEGER NOT NULL,
    start_time    INTEGER NOT NULL,
    boot_id       TEXT NOT NULL,
    server        INTEGER NOT NULL,
    uid           INTEGER,
    program       TEXT,
    -- Not a reference: the process may outlive its tenant.
    tenant        TEXT,
    attributed_by TEXT NOT NULL,
    PRIMARY KEY (daemon, pid, start_time, boot_id)
) STRICT;

-- How far the server.log of a daemon was read for the events that it tells of, written with them.
CREATE TABLE log_places (
    daemon     TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    inode      INTEGER NOT NULL,
    born       INTEGER,
    read_to    INTEGER NOT NULL
) STRICT;
