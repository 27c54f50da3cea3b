-- When a tenant expires, in unix milliseconds; NULL where it stays until it is deleted. It is a part of the spec that stands here
-- alone, so that the expired ones are found without reading every spec.
ALTER TABLE tenants ADD COLUMN expires_at INTEGER;
CREATE INDEX tenants_by_expiry ON tenants (expires_at) WHERE expires_at IS NOT NULL;
