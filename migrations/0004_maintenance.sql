-- An operation may work on several daemons, or on none: those it works on stand beside it. What runs holds a lock on each
-- of its daemons, so that the database itself refuses a second one.
CREATE TABLE operation_daemons (
    operation TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    daemon    TEXT NOT NULL,
    PRIMARY KEY (operation, daemon)
) STRICT;
CREATE INDEX operation_daemons_by_daemon ON operation_daemons (daemon, operation);
INSERT INTO operation_daemons (operation, daemon) SELECT id, daemon FROM operations;

CREATE TABLE operation_locks (
    daemon    TEXT PRIMARY KEY,
    operation TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE
) STRICT;
INSERT INTO operation_locks (daemon, operation) SELECT daemon, id FROM operations WHERE state = 'running';

DROP INDEX operations_one_running;
ALTER TABLE operations DROP COLUMN daemon;
-- Whether it can be stopped where it is, and when somebody asked for that: both outlive the manager.
ALTER TABLE operations ADD COLUMN cancellable INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operations ADD COLUMN cancel_requested_at INTEGER;

-- The maintenance of the host, of which there is one at a time. It feeds what its daemons should be, beside their specs,
-- which keep what the user wants of them.
CREATE TABLE maintenance (
    only_one   INTEGER PRIMARY KEY CHECK (only_one = 1),
    operation  TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('draining', 'quitting', 'active', 'ending')),
    gpus       TEXT NOT NULL CHECK (json_valid(gpus)),
    since      INTEGER NOT NULL,
    -- What is told of the GPUs while the driver is let go; a manager that starts meanwhile does not ask the driver.
    remembered TEXT CHECK (json_valid(remembered))
) STRICT;

-- What the compute mode of a GPU was before a daemon of ours wanted another: written before the other is set, and gone once
-- it was put back. A compute mode does not outlive the boot it was set in, unless the driver's persistence keeps it.
CREATE TABLE compute_modes (
    gpu        TEXT PRIMARY KEY,
    -- Not a reference: the mode is put back after the daemon is gone, too.
    daemon     TEXT NOT NULL,
    previous   TEXT NOT NULL,
    wanted     TEXT NOT NULL,
    boot_id    TEXT NOT NULL,
    written_at INTEGER NOT NULL
) STRICT;
