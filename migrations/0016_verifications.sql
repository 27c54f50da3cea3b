-- What a CUDA client saw last in the environment of each tenant; it goes with the tenant.
CREATE TABLE verifications (
    tenant        TEXT PRIMARY KEY REFERENCES tenants (name) ON DELETE CASCADE,
    -- Since when a client is on its way; NULL while none is.
    running_since INTEGER,
    result        TEXT CHECK (json_valid(result))
) STRICT;
