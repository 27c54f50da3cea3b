-- Who did what, and what came of it. Rows are only ever added, and each holds the hash of the one before: docs/audit.md says of
-- what, so that anybody can check it.
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
    -- How many attempts this row stands for.
    count    INTEGER NOT NULL CHECK (count > 0),
    before   TEXT CHECK (json_valid(before)),
    after    TEXT CHECK (json_valid(after)),
    previous TEXT NOT NULL,
    hash     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_actor ON audit (actor);
CREATE INDEX audit_by_target ON audit (target);
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'a row of the audit is never changed');
END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'a row of the audit is never deleted');
END;
