-- Layouts of partitions, and their versions, which are never changed.
CREATE TABLE layouts (
    name       TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE layout_versions (
    layout     TEXT NOT NULL REFERENCES layouts (name) ON DELETE CASCADE,
    version    INTEGER NOT NULL CHECK (version > 0),
    content    TEXT NOT NULL CHECK (json_valid(content)),
    author     TEXT NOT NULL,
    note       TEXT,
    created_at INTEGER NOT NULL,
    -- Where it came from, if it was imported.
    provenance TEXT CHECK (json_valid(provenance)),
    PRIMARY KEY (layout, version)
) STRICT;
CREATE TRIGGER layout_versions_stay BEFORE UPDATE ON layout_versions
BEGIN
    SELECT RAISE(ABORT, 'a version of a layout is never changed');
END;

-- The partitions that were made in the control process that a daemon has or had last: written before a session that changes
-- them and after it.
CREATE TABLE partition_runs (
    daemon     TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    run        TEXT NOT NULL CHECK (json_valid(run)),
    written_at INTEGER NOT NULL
) STRICT;

-- What the steps of a layout give on the GPUs of a daemon: whatever a later run gives is compared with it.
CREATE TABLE applied_layouts (
    daemon  TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    layout  TEXT NOT NULL,
    version INTEGER NOT NULL,
    gpu_map TEXT NOT NULL CHECK (json_valid(gpu_map)),
    record  TEXT NOT NULL CHECK (json_valid(record)),
    source  TEXT NOT NULL CHECK (source IN ('applied', 'replayed')),
    at      INTEGER NOT NULL
) STRICT;

-- A change of a daemon's layout that is under way: what it goes back to if it fails, and how the driver takes it. Gone in the
-- transaction that ends the operation.
CREATE TABLE layout_changes (
    operation     TEXT PRIMARY KEY REFERENCES operations (id) ON DELETE CASCADE,
    daemon        TEXT NOT NULL UNIQUE REFERENCES daemons (name) ON DELETE CASCADE,
    previous      TEXT NOT NULL CHECK (json_valid(previous)),
    recreate      INTEGER NOT NULL CHECK (recreate IN (0, 1)),
    on_difference TEXT NOT NULL CHECK (on_difference IN ('stop', 'keep'))
) STRICT;

-- One execution of a layout from empty, compared step by step with what is on record.
CREATE TABLE replays (
    id          TEXT PRIMARY KEY,
    daemon      TEXT NOT NULL,
    -- NULL for one that the restart of a daemon led to.
    operation   TEXT,
    verdict     TEXT NOT NULL CHECK (verdict IN ('pending', 'same', 'first', 'differs', 'failed')),
    content     TEXT NOT NULL CHECK (json_valid(content)),
    created_at  INTEGER NOT NULL,
    finished_at INTEGER
) STRICT;
CREATE INDEX replays_by_operation ON replays (operation);

-- Who was let into which partition: an ID names SMs, and may come back for somebody else while such a process lives.
CREATE TABLE partition_leases (
    pid          INTEGER NOT NULL,
    start_time   INTEGER NOT NULL,
    boot_id      TEXT NOT NULL,
    gpu          TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    -- Not a reference: the process may outlive its tenant.
    tenant       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (pid, start_time, boot_id, gpu)
) STRICT;
CREATE INDEX partition_leases_by_partition ON partition_leases (gpu, partition_id);
