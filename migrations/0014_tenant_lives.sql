-- A name may be given to another tenant after one was forgotten: whoever is bound to the new one sees nothing of the one before.

-- The first event that is told to whoever is bound to the tenant: a number and no time, since clocks are set back.
ALTER TABLE tenants ADD COLUMN told_from INTEGER NOT NULL DEFAULT 0;
UPDATE tenants SET told_from = coalesce(
    (SELECT max(id) FROM events WHERE events.tenant = tenants.name AND events.type = 'tenant.created'), 0);
-- From here on, what a tenant asked for is nobody's once it is forgotten.
UPDATE operations SET tenant = NULL
WHERE tenant IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM tenants WHERE tenants.name = operations.tenant AND tenants.created_at <= operations.created_at);

-- A session may be one of a user of this host, who is looked up in the configuration each time it is used.
CREATE TABLE sessions_of (
    digest       BLOB PRIMARY KEY CHECK (length(digest) = 32),
    -- The token that it was opened with; NULL for the admin token, which has no row and is named by its digest, and for a user.
    token        TEXT REFERENCES tokens (id) ON DELETE CASCADE,
    admin        BLOB CHECK (length(admin) = 32),
    uid          INTEGER,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    CHECK ((token IS NOT NULL) + (admin IS NOT NULL) + (uid IS NOT NULL) = 1)
) STRICT;
INSERT INTO sessions_of (digest, token, admin, created_at, last_used_at)
SELECT digest, token, admin, created_at, last_used_at FROM sessions;
DROP TABLE sessions;
ALTER TABLE sessions_of RENAME TO sessions;
CREATE INDEX sessions_by_token ON sessions (token);
