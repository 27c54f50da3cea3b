-- Times are unix milliseconds where no other unit is named. A spec is the JSON that the API shows; the columns beside it are what
-- SQL selects by.

-- The host that this database belongs to: one row, and none before the first start.
CREATE TABLE host (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    -- `none` for a host without a machine ID.
    machine_id TEXT NOT NULL,
    written_at INTEGER NOT NULL
) STRICT;

-- The GPUs that daemons hold, as they were when they were last present: a daemon can be planned while its GPU is missing.
CREATE TABLE gpus (
    uuid    TEXT PRIMARY KEY,
    facts   TEXT NOT NULL CHECK (json_valid(facts)),
    seen_at INTEGER NOT NULL
) STRICT;

-- How many chunks a GPU has, as CUDA's splitter counted them: a property of the die, which is counted once.
CREATE TABLE gpu_chunks (
    gpu         TEXT PRIMARY KEY,
    chunk_count TEXT NOT NULL CHECK (json_valid(chunk_count)),
    counted_at  INTEGER NOT NULL
) STRICT;

-- The control daemons: what each should be.
CREATE TABLE daemons (
    name                TEXT PRIMARY KEY,
    spec                TEXT NOT NULL CHECK (json_valid(spec)),
    -- Counts the changes of the spec; the entity tag.
    revision            INTEGER NOT NULL,
    -- Counts the changes of everything that feeds the daemon, such as its tenants.
    generation          INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    -- The first event of this daemon: earlier ones are of a deleted daemon of the same name. Not a time, since clocks are set back.
    events_visible_from INTEGER NOT NULL DEFAULT 0
) STRICT;
-- Two names that differ only in hyphens and underscores would be one for a newer version of MPS; so for tenants and layouts.
CREATE UNIQUE INDEX daemons_by_folded_name ON daemons (replace(name, '-', '_'));

-- The highest numbers that a daemon of a name ever had. A daemon that is created again continues from there, so that an entity tag
-- never fits another daemon.
CREATE TABLE daemon_counters (
    daemon     TEXT PRIMARY KEY,
    revision   INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE TRIGGER daemons_count_insert AFTER INSERT ON daemons
BEGIN
    INSERT INTO daemon_counters VALUES (NEW.name, NEW.revision, NEW.generation)
    ON CONFLICT (daemon) DO UPDATE
    SET revision = max(revision, excluded.revision), generation = max(generation, excluded.generation);
END;
CREATE TRIGGER daemons_count_update AFTER UPDATE OF revision, generation ON daemons
BEGIN
    INSERT INTO daemon_counters VALUES (NEW.name, NEW.revision, NEW.generation)
    ON CONFLICT (daemon) DO UPDATE
    SET revision = max(revision, excluded.revision), generation = max(generation, excluded.generation);
END;

-- The GPUs that managed daemons hold. A GPU belongs to one daemon: two would each count its whole memory as theirs.
CREATE TABLE daemon_gpus (
    gpu    TEXT PRIMARY KEY,
    daemon TEXT NOT NULL REFERENCES daemons (name) ON DELETE CASCADE
) STRICT;

-- The control process that a daemon has or had last.
CREATE TABLE incarnations (
    daemon             TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    -- Written before the process is started, so that a manager that dies in between finds it again.
    token              TEXT NOT NULL UNIQUE,
    boot_id            TEXT NOT NULL,
    pid                INTEGER,
    start_time         INTEGER,
    pipe_inode         INTEGER,
    -- When the pipe directory was made, in unix nanoseconds: an inode number may be reused at once. NULL where the file system
    -- does not keep it.
    pipe_birth_ns      INTEGER,
    -- The generation of the daemon that was applied and read back.
    applied_generation INTEGER NOT NULL DEFAULT 0,
    -- A process that was adopted carries no token of ours: it is found again by its PID and start time.
    is_foreign         INTEGER NOT NULL DEFAULT 0 CHECK (is_foreign IN (0, 1)),
    -- The directories of such a process; NULL for those that this manager gives.
    pipe_directory     TEXT,
    log_directory      TEXT,
    written_at         INTEGER NOT NULL
) STRICT;

-- The compute mode that a GPU had before a daemon of ours set another: written before the change, deleted once it was put back.
-- A compute mode does not outlive the boot it was set in, unless the driver's persistence keeps it.
CREATE TABLE compute_modes (
    gpu        TEXT PRIMARY KEY,
    -- Not a reference: the mode is put back after the daemon is gone, too.
    daemon     TEXT NOT NULL,
    previous   TEXT NOT NULL,
    desired    TEXT NOT NULL,
    boot_id    TEXT NOT NULL,
    written_at INTEGER NOT NULL
) STRICT;

-- How far the server.log of a daemon was read for events, written with those events.
CREATE TABLE log_offsets (
    daemon         TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    inode          INTEGER NOT NULL,
    -- When the file was made, in unix nanoseconds.
    inode_birth_ns INTEGER,
    read_offset    INTEGER NOT NULL
) STRICT;

-- The tenants: what each should have.
CREATE TABLE tenants (
    name                TEXT PRIMARY KEY,
    daemon              TEXT NOT NULL REFERENCES daemons (name),
    spec                TEXT NOT NULL CHECK (json_valid(spec)),
    -- Counts the changes of the spec; the entity tag.
    generation          INTEGER NOT NULL,
    -- The generation of the daemon that includes this spec.
    daemon_generation   INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    -- The first event that this tenant's tokens may read: earlier ones are of a deleted tenant of the same name.
    events_visible_from INTEGER NOT NULL DEFAULT 0,
    -- The tenant's directory in the runtime directory, with the one socket that its processes need. Random, so that another
    -- tenant of the same name gets another directory.
    directory           TEXT NOT NULL DEFAULT '',
    -- When it expires, in unix milliseconds; NULL where it stays until it is deleted. It is a part of the spec that stands here alone, so
    -- that the expired ones are found without reading every spec.
    expires_at          INTEGER,
    -- Whether it is drained: it admits no process, and is deleted once it has none. A drain has it expire, and a change of its expiry
    -- takes the drain back.
    draining            INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
    -- Whether no process will be started with the environment of a drained tenant any more, so that its directory goes with it.
    finished            INTEGER NOT NULL DEFAULT 0 CHECK (finished IN (0, 1)),
    -- The operation that waits for its processes to leave a partition: it admits none meanwhile.
    held_by             TEXT
) STRICT;
CREATE INDEX tenants_by_daemon ON tenants (daemon, name);
CREATE INDEX tenants_by_expiry ON tenants (expires_at) WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX tenants_by_folded_name ON tenants (replace(name, '-', '_'));
CREATE UNIQUE INDEX tenants_by_directory ON tenants (directory);

-- The highest generation that a tenant of a name ever had, as for daemons.
CREATE TABLE tenant_counters (
    tenant     TEXT PRIMARY KEY,
    generation INTEGER NOT NULL
) STRICT;
CREATE TRIGGER tenants_count_insert AFTER INSERT ON tenants
BEGIN
    INSERT INTO tenant_counters VALUES (NEW.name, NEW.generation)
    ON CONFLICT (tenant) DO UPDATE SET generation = max(generation, excluded.generation);
END;
CREATE TRIGGER tenants_count_update AFTER UPDATE OF generation ON tenants
BEGIN
    INSERT INTO tenant_counters VALUES (NEW.name, NEW.generation)
    ON CONFLICT (tenant) DO UPDATE SET generation = max(generation, excluded.generation);
END;

-- What a CUDA client saw last in the environment of each tenant.
CREATE TABLE verifications (
    tenant        TEXT PRIMARY KEY REFERENCES tenants (name) ON DELETE CASCADE,
    -- When the client that runs now was started; NULL while none runs.
    running_since INTEGER,
    result        TEXT CHECK (json_valid(result))
) STRICT;

-- Processes that may run as a tenant's clients.
CREATE TABLE leases (
    pid         INTEGER NOT NULL,
    start_time  INTEGER NOT NULL,
    boot_id     TEXT NOT NULL,
    tenant      TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    -- `own`: the process took it itself, which proves that it is the tenant's. `recorded`: an operator named the process ID, which
    -- proves nothing: it counts, and is signalled only once MPS lists it.
    kind        TEXT NOT NULL DEFAULT 'recorded' CHECK (kind IN ('own', 'recorded')),
    -- Whether an operator recorded the process, also where it has a lease of its own: then an operator revokes it.
    by_operator INTEGER NOT NULL DEFAULT 0 CHECK (by_operator IN (0, 1)),
    -- The command line when the lease was granted.
    command     TEXT NOT NULL DEFAULT '',
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (pid, start_time, boot_id)
) STRICT;
CREATE INDEX leases_by_tenant ON leases (tenant);

-- Processes that were started in a partition. A partition ID names SMs and may be given again while such a process lives.
CREATE TABLE partition_leases (
    pid          INTEGER NOT NULL,
    start_time   INTEGER NOT NULL,
    boot_id      TEXT NOT NULL,
    gpu          TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    -- Not a reference, since the process may outlive its tenant; empty once the tenant is deleted.
    tenant       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (pid, start_time, boot_id, gpu)
) STRICT;
CREATE INDEX partition_leases_by_partition ON partition_leases (gpu, partition_id);

-- Clients whose connection is in the events and whose end is not: a manager that starts compares them with the processes that
-- live, so that no connection gets a second event and no end gets none.
CREATE TABLE connected_clients (
    daemon        TEXT NOT NULL REFERENCES daemons (name) ON DELETE CASCADE,
    pid           INTEGER NOT NULL,
    start_time    INTEGER NOT NULL,
    boot_id       TEXT NOT NULL,
    -- The PID of the server.
    server        INTEGER NOT NULL,
    uid           INTEGER,
    program       TEXT,
    -- Not a reference: the process may outlive its tenant.
    tenant        TEXT,
    attributed_by TEXT NOT NULL,
    PRIMARY KEY (daemon, pid, start_time, boot_id)
) STRICT;

-- Lines of the history: each a measure of a tenant, of a tenant on a GPU, or of a GPU. AUTOINCREMENT, so that the points of a deleted
-- tenant, which stay until they are old, are never those of another line.
CREATE TABLE history_lines (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT REFERENCES tenants (name) ON DELETE CASCADE,
    gpu        TEXT,
    measure    TEXT NOT NULL,
    -- When it got a point last, within an hour.
    written_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX history_lines_by_key ON history_lines (ifnull(tenant, ''), ifnull(gpu, ''), measure);

-- Their points, in the order of time, so that each minute adds to the end.
CREATE TABLE history_points (
    period_ms INTEGER NOT NULL,
    -- The end of the period.
    at        INTEGER NOT NULL,
    line      INTEGER NOT NULL,
    mean      REAL NOT NULL,
    max       REAL NOT NULL,
    PRIMARY KEY (period_ms, at, line)
) STRICT, WITHOUT ROWID;

-- Layouts of partitions.
CREATE TABLE layouts (
    name       TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX layouts_by_folded_name ON layouts (replace(name, '-', '_'));

-- The versions of layouts, which never change.
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
CREATE TRIGGER layout_versions_refuse_update BEFORE UPDATE ON layout_versions
BEGIN
    SELECT RAISE(ABORT, 'a version of a layout is never changed');
END;

-- The highest version that a layout of a name ever had, so that a version number never means two things.
CREATE TABLE layout_counters (
    layout  TEXT PRIMARY KEY,
    version INTEGER NOT NULL CHECK (version > 0)
) STRICT;
CREATE TRIGGER layout_versions_count_insert AFTER INSERT ON layout_versions
BEGIN
    INSERT INTO layout_counters VALUES (NEW.layout, NEW.version)
    ON CONFLICT (layout) DO UPDATE SET version = max(version, excluded.version);
END;

-- The partitions that were made in the control process that a daemon has or had last: written before and after each session that
-- changes them.
CREATE TABLE partition_runs (
    daemon     TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    run        TEXT NOT NULL CHECK (json_valid(run)),
    written_at INTEGER NOT NULL
) STRICT;

-- The partition IDs that the steps of a layout gave on the GPUs of a daemon: every later run is compared with them.
CREATE TABLE applied_layouts (
    daemon  TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    layout  TEXT NOT NULL,
    version INTEGER NOT NULL,
    gpu_map TEXT NOT NULL CHECK (json_valid(gpu_map)),
    record  TEXT NOT NULL CHECK (json_valid(record)),
    source  TEXT NOT NULL CHECK (source IN ('applied', 'replayed')),
    at      INTEGER NOT NULL
) STRICT;

-- One execution of a layout from empty, compared step by step with the IDs on record.
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

-- Long actions. The ID is a UUID of version 7, so they sort by age.
CREATE TABLE operations (
    id                  TEXT PRIMARY KEY,
    request             TEXT NOT NULL CHECK (json_valid(request)),
    -- The tenant whose token requested it, which may read it.
    tenant              TEXT,
    state               TEXT NOT NULL CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')),
    error               TEXT,
    -- Whether it can be cancelled at its present step, and when that was requested: both outlive the manager.
    cancellable         INTEGER NOT NULL DEFAULT 0,
    cancel_requested_at INTEGER,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER
) STRICT;
CREATE INDEX operations_pending ON operations (state, id) WHERE state IN ('pending', 'running');

-- The daemons that an operation works on: several, one or none.
CREATE TABLE operation_daemons (
    operation TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    daemon    TEXT NOT NULL,
    PRIMARY KEY (operation, daemon)
) STRICT;
CREATE INDEX operation_daemons_by_daemon ON operation_daemons (daemon, operation);

-- The running operation of each daemon: the database itself refuses a second one.
CREATE TABLE operation_locks (
    daemon    TEXT PRIMARY KEY,
    operation TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE
) STRICT;

-- The journal of an operation: a step is written before it is taken and completed after.
CREATE TABLE operation_steps (
    operation   TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    ordinal     INTEGER NOT NULL,
    name        TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    outcome     TEXT,
    PRIMARY KEY (operation, ordinal)
) STRICT;

-- A change of a daemon's layout in progress, deleted in the transaction that ends its operation.
CREATE TABLE layout_changes (
    operation TEXT PRIMARY KEY REFERENCES operations (id) ON DELETE CASCADE,
    daemon    TEXT NOT NULL UNIQUE REFERENCES daemons (name) ON DELETE CASCADE,
    -- The layout that the daemon returns to if the change fails.
    previous  TEXT NOT NULL CHECK (json_valid(previous)),
    -- Whether all partitions are made anew.
    recreate  INTEGER NOT NULL CHECK (recreate IN (0, 1))
) STRICT;

-- The maintenance of the host: one at a time. It feeds what the daemons should be, beside their specs.
CREATE TABLE maintenance (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    operation TEXT NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('draining', 'quitting', 'active', 'ending')),
    gpus      TEXT NOT NULL CHECK (json_valid(gpus)),
    since     INTEGER NOT NULL,
    -- What is shown of the GPUs while the driver is unloaded: the driver is not asked meanwhile, by no manager.
    inventory TEXT CHECK (json_valid(inventory))
) STRICT;

-- The answers to requests with an Idempotency-Key.
CREATE TABLE idempotency_keys (
    key          TEXT PRIMARY KEY,
    request_hash TEXT NOT NULL,
    response     TEXT NOT NULL CHECK (json_valid(response)),
    created_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- API tokens. A digest is the SHA-256 of a secret of 256 random bits.
CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    digest       BLOB NOT NULL CHECK (length(digest) = 32),
    -- A role, or `tenant:NAME`. Not a reference: a token that was revoked with its tenant can still be read.
    granted      TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;
CREATE INDEX tokens_by_grant ON tokens (granted) WHERE revoked_at IS NULL;

-- Sessions of browsers, each opened with a token, with the admin token or as a user of this host.
CREATE TABLE sessions (
    digest       BLOB PRIMARY KEY CHECK (length(digest) = 32),
    token        TEXT REFERENCES tokens (id) ON DELETE CASCADE,
    -- The digest of the admin token, which has no row.
    admin        BLOB CHECK (length(admin) = 32),
    -- A user, whose rights are looked up in the configuration at each request.
    uid          INTEGER,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    CHECK ((token IS NOT NULL) + (admin IS NOT NULL) + (uid IS NOT NULL) = 1)
) STRICT;
CREATE INDEX sessions_by_token ON sessions (token);

-- What happened, in the order of the commits. AUTOINCREMENT, so that the number of a pruned event is never given again.
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
-- Each index holds the event's number too, so a page is read in order and ends at its limit.
CREATE INDEX events_by_type ON events (type);
CREATE INDEX events_by_daemon ON events (daemon) WHERE daemon IS NOT NULL;
CREATE INDEX events_by_gpu ON events (gpu) WHERE gpu IS NOT NULL;
CREATE INDEX events_by_client ON events (client) WHERE client IS NOT NULL;
CREATE INDEX events_by_tenant ON events (tenant) WHERE tenant IS NOT NULL;
CREATE INDEX events_by_operation ON events (operation) WHERE operation IS NOT NULL;
CREATE INDEX events_by_cause ON events (json_extract(cause, '$.id')) WHERE json_extract(cause, '$.id') IS NOT NULL;

-- What an event is about beyond its columns, where that is several: the daemons and GPUs of an operation, and each tenant that lost
-- work by a fault or a death.
CREATE TABLE event_subjects (
    event INTEGER NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    kind  TEXT NOT NULL CHECK (kind IN ('daemon', 'gpu', 'tenant')),
    name  TEXT NOT NULL,
    PRIMARY KEY (event, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_subjects_by_name ON event_subjects (kind, name, event);

-- What broke: written in the transaction of the events that it is made of.
CREATE TABLE incidents (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    kind            TEXT NOT NULL,
    severity        INTEGER NOT NULL,
    daemon          TEXT NOT NULL,
    opened_at       INTEGER NOT NULL,
    -- NULL while it is open.
    recovered_at    INTEGER,
    acknowledged_at INTEGER,
    -- The event that opened it: earlier events are of a deleted daemon or tenant of the same name.
    first_event     INTEGER NOT NULL,
    content         TEXT NOT NULL CHECK (json_valid(content))
) STRICT;
CREATE INDEX incidents_open ON incidents (daemon) WHERE recovered_at IS NULL;
CREATE INDEX incidents_by_end ON incidents (recovered_at) WHERE recovered_at IS NOT NULL;
CREATE INDEX incidents_by_daemon ON incidents (daemon, id);

-- The GPUs of an incident, and the tenants that it hit.
CREATE TABLE incident_subjects (
    incident INTEGER NOT NULL REFERENCES incidents (id) ON DELETE CASCADE,
    kind     TEXT NOT NULL CHECK (kind IN ('gpu', 'tenant')),
    name     TEXT NOT NULL,
    PRIMARY KEY (incident, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX incident_subjects_by_name ON incident_subjects (kind, name, incident);

-- The audit log: who did what, and with what outcome. Rows are only ever added, and each holds the hash of the one before;
-- docs/audit.md says what is hashed, so that anyone can check it.
CREATE TABLE audit (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    granted  TEXT NOT NULL,
    origin   TEXT NOT NULL,
    request  TEXT,
    action   TEXT NOT NULL,
    target   TEXT NOT NULL,
    outcome  TEXT NOT NULL CHECK (outcome IN ('done', 'refused', 'failed')),
    problem  TEXT,
    before   TEXT CHECK (json_valid(before)),
    after    TEXT CHECK (json_valid(after)),
    previous TEXT NOT NULL,
    hash     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_actor ON audit (actor);
CREATE INDEX audit_by_target ON audit (target);
CREATE TRIGGER audit_refuse_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'a row of the audit is never changed');
END;
CREATE TRIGGER audit_refuse_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'a row of the audit is never deleted');
END;

-- Other hosts that the console shows beside this one.
CREATE TABLE saved_hosts (
    name     TEXT PRIMARY KEY,
    url      TEXT NOT NULL,
    -- Certificates to trust there, as PEM; NULL for those of the system.
    ca       TEXT,
    -- Encrypted with a key that is not in the database.
    token    BLOB NOT NULL,
    saved_at INTEGER NOT NULL,
    saved_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;
