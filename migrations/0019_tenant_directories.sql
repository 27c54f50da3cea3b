-- Each tenant has a directory of its own in the runtime directory, with the one socket that its processes need. Its name is
-- made once and goes with the tenant: another tenant of the same name gets another one.
ALTER TABLE tenants ADD COLUMN directory TEXT NOT NULL DEFAULT '';
UPDATE tenants SET directory = lower(hex(randomblob(5)));
CREATE UNIQUE INDEX tenants_by_directory ON tenants (directory);
