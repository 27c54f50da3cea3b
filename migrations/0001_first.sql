-- Times are unix milliseconds. A spec is the JSON that the API shows; columns beside it are what SQL asks for.

CREATE TABLE daemons (
    name       TEXT PRIMARY KEY,
    spec       TEXT NOT NULL CHECK (json_valid(spec)),
    revision   INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE daemon_gpus (
    -- A GPU belongs to one daemon: two would each count its whole memory as theirs.
    gpu    TEXT PRIMARY KEY,
    daemon TEXT NOT NULL REFERENCES daemons (name) ON DELETE CASCADE
) STRICT;

CREATE TABLE incarnations (
    -- The control process a daemon has or had last. The token is written before the process is started, so that
    -- a manager that dies in between finds it again.
    daemon     TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    token      TEXT NOT NULL UNIQUE,
    boot_id    TEXT NOT NULL,
    pid        INTEGER,
    start_time INTEGER,
    pipe_inode INTEGER,
    applied    INTEGER NOT NULL DEFAULT 0,
    written_at INTEGER NOT NULL
) STRICT;

CREATE TABLE tenants (
    name              TEXT PRIMARY KEY,
    daemon            TEXT NOT NULL REFERENCES daemons (name),
    spec              TEXT NOT NULL CHECK (json_valid(spec)),
    generation        INTEGER NOT NULL,
    daemon_generation INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL
) STRICT;
CREATE INDEX tenants_by_daemon ON tenants (daemon, name);

CREATE TABLE leases (
    pid        INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    boot_id    TEXT NOT NULL,
    tenant     TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (pid, start_time, boot_id)
) STRICT;
CREATE INDEX leases_by_tenant ON leases (tenant);

CREATE TABLE operations (
    id          TEXT PRIMARY KEY,
    request     TEXT NOT NULL CHECK (json_valid(request)),
    daemon      TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')),
    error       TEXT,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER
) STRICT;
CREATE UNIQUE INDEX operations_one_running ON operations (daemon) WHERE state = 'running';
CREATE INDEX operations_pending ON operations (state, id) WHERE state IN ('pending', 'running');

CREATE TABLE operation_steps (
    operation   TEXT NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    ordinal     INTEGER NOT NULL,
    name        TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    outcome     TEXT,
    PRIMARY KEY (operation, ordinal)
) STRICT;

CREATE TABLE idempotency_keys (
    key          TEXT PRIMARY KEY,
    request_hash TEXT NOT NULL,
    response     TEXT NOT NULL CHECK (json_valid(response)),
    created_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
