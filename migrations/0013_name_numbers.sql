-- The highest numbers that a tenant and a daemon of a name ever had: one that is written again after it was forgotten goes on from
-- there, so that an entity tag that somebody kept never fits another thing.
CREATE TABLE tenant_numbers (
    tenant     TEXT PRIMARY KEY,
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO tenant_numbers SELECT name, generation FROM tenants;
CREATE TRIGGER tenants_counted AFTER INSERT ON tenants
BEGIN
    INSERT INTO tenant_numbers VALUES (NEW.name, NEW.generation)
    ON CONFLICT (tenant) DO UPDATE SET generation = max(generation, excluded.generation);
END;
CREATE TRIGGER tenants_counted_on AFTER UPDATE OF generation ON tenants
BEGIN
    INSERT INTO tenant_numbers VALUES (NEW.name, NEW.generation)
    ON CONFLICT (tenant) DO UPDATE SET generation = max(generation, excluded.generation);
END;

CREATE TABLE daemon_numbers (
    daemon     TEXT PRIMARY KEY,
    revision   INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO daemon_numbers SELECT name, revision, generation FROM daemons;
CREATE TRIGGER daemons_counted AFTER INSERT ON daemons
BEGIN
    INSERT INTO daemon_numbers VALUES (NEW.name, NEW.revision, NEW.generation)
    ON CONFLICT (daemon) DO UPDATE
    SET revision = max(revision, excluded.revision), generation = max(generation, excluded.generation);
END;
CREATE TRIGGER daemons_counted_on AFTER UPDATE OF revision, generation ON daemons
BEGIN
    INSERT INTO daemon_numbers VALUES (NEW.name, NEW.revision, NEW.generation)
    ON CONFLICT (daemon) DO UPDATE
    SET revision = max(revision, excluded.revision), generation = max(generation, excluded.generation);
END;
