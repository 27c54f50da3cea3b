-- Who may do what. Times are unix milliseconds; a digest is the SHA-256 of a secret of 256 random bits.

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    digest       BLOB NOT NULL CHECK (length(digest) = 32),
    -- A role, or `tenant:NAME`; the tenant is not a reference, since what was revoked with it stays to be read.
    granted      TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;
CREATE INDEX tokens_by_grant ON tokens (granted) WHERE revoked_at IS NULL;

CREATE TABLE sessions (
    digest       BLOB PRIMARY KEY CHECK (length(digest) = 32),
    -- The token that it was opened with; NULL for the admin token, which has no row and is named by its digest.
    token        TEXT REFERENCES tokens (id) ON DELETE CASCADE,
    admin        BLOB CHECK (length(admin) = 32),
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    CHECK ((token IS NULL) != (admin IS NULL))
) STRICT;
CREATE INDEX sessions_by_token ON sessions (token);

-- The tenant that an operation was asked for by, which may look at it.
ALTER TABLE operations ADD COLUMN tenant TEXT;
