-- Brings what is true of this host from the database that is replaced, attached as `replaced`, into the restored one. Both have
-- the newest schema, so their columns are the same.

-- A tenant that is in both. Its name says nothing, since it may have been given to another tenant; its directory never is.
CREATE TEMP VIEW kept_tenants AS SELECT name FROM main.tenants JOIN replaced.tenants USING (name, directory);

-- The control processes that run, so that they are adopted. Nothing counts as applied: it was read back under other settings.
DELETE FROM main.incarnations;
INSERT INTO main.incarnations SELECT * FROM replaced.incarnations WHERE daemon IN (SELECT name FROM main.daemons);
UPDATE main.incarnations SET applied_generation = 0;
DELETE FROM main.partition_runs;
INSERT INTO main.partition_runs SELECT * FROM replaced.partition_runs WHERE daemon IN (SELECT name FROM main.daemons);

-- A daemon stays running or stopped: a restore ends no client.
UPDATE main.daemons AS restored SET spec = json_set(restored.spec, '$.desired_state', present.spec ->> '$.desired_state')
FROM replaced.daemons AS present WHERE present.name = restored.name;

-- Leases of processes. What was started in a partition stays recorded without its tenant: the process may live.
DELETE FROM main.leases;
INSERT INTO main.leases SELECT * FROM replaced.leases WHERE tenant IN (SELECT name FROM kept_tenants);
DELETE FROM main.partition_leases;
INSERT INTO main.partition_leases SELECT * FROM replaced.partition_leases;
UPDATE main.partition_leases SET tenant = '' WHERE tenant NOT IN (SELECT name FROM kept_tenants);

-- The compute modes to put back, and the maintenance that the host is in.
DELETE FROM main.compute_modes;
INSERT INTO main.compute_modes SELECT * FROM replaced.compute_modes;
DELETE FROM main.maintenance;
INSERT INTO main.maintenance SELECT * FROM replaced.maintenance;

-- Tokens: one that was revoked since the backup does not work again, and one that was created since goes on.
DELETE FROM main.tokens;
INSERT INTO main.tokens SELECT * FROM replaced.tokens;

-- Numbers that clients of the API hold, raised past both databases: none ever means two things.
INSERT INTO main.daemon_counters SELECT * FROM replaced.daemon_counters WHERE true
ON CONFLICT (daemon) DO UPDATE
SET revision = max(revision, excluded.revision), generation = max(generation, excluded.generation);
UPDATE main.daemons AS restored SET revision = counters.revision + 1, generation = counters.generation + 1
FROM main.daemon_counters AS counters WHERE counters.daemon = restored.name;
INSERT INTO main.tenant_counters SELECT * FROM replaced.tenant_counters WHERE true
ON CONFLICT (tenant) DO UPDATE SET generation = max(generation, excluded.generation);
UPDATE main.tenants AS restored SET generation = counters.generation + 1
FROM main.tenant_counters AS counters WHERE counters.tenant = restored.name;
INSERT INTO main.layout_counters SELECT * FROM replaced.layout_counters WHERE true
ON CONFLICT (layout) DO UPDATE SET version = max(version, excluded.version);
UPDATE main.sqlite_sequence AS restored SET seq = max(restored.seq, present.seq)
FROM replaced.sqlite_sequence AS present WHERE present.name = 'incidents' AND restored.name = 'incidents';
INSERT INTO main.sqlite_sequence (name, seq)
SELECT name, seq FROM replaced.sqlite_sequence
WHERE name = 'incidents' AND NOT EXISTS (SELECT 1 FROM main.sqlite_sequence WHERE name = 'incidents');
