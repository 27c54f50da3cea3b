-- Whether a tenant is drained: it admits no process, and is deleted once it has none. A drain has it expire, and whoever changes that takes
-- the drain back.
ALTER TABLE tenants ADD COLUMN draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1));
