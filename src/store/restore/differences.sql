-- What the database that is replaced and the restored one do not share, a sentence each.
SELECT 'daemon ' || name || ' was created after the backup and is forgotten: a control daemon of it that runs is listed as foreign '
    || '(`mps-manager status`), and can be adopted or stopped'
FROM replaced.daemons WHERE name NOT IN (SELECT name FROM main.daemons)
UNION ALL
SELECT 'daemon ' || name || ' is in the backup and was deleted since: the next start creates it as its spec says'
FROM main.daemons WHERE name NOT IN (SELECT name FROM replaced.daemons)
UNION ALL
SELECT 'daemon ' || name || ' was ' || (backup.spec ->> '$.desired_state') || ' when the backup was made, and stays '
    || (present.spec ->> '$.desired_state')
FROM main.daemons AS backup JOIN replaced.daemons AS present USING (name)
WHERE backup.spec ->> '$.desired_state' <> present.spec ->> '$.desired_state'
UNION ALL
SELECT 'tenant ' || present.name || ' was created after the backup and is forgotten: ' || CASE
    WHEN backup.name IS NULL THEN 'its processes keep running without a tenant'
    ELSE 'the backup has another tenant of that name, and processes of the forgotten one keep running without a lease. They count '
        || 'as the other''s where their user or their environment says so (`mps-manager clients` shows by what): end those that '
        || 'must not'
    END
FROM replaced.tenants AS present LEFT JOIN main.tenants AS backup USING (name)
WHERE backup.directory IS NOT present.directory
UNION ALL
SELECT 'the host stays in maintenance' FROM replaced.maintenance
