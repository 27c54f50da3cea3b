-- How it is known that a process is a tenant's. Leases of earlier releases were given to any process ID that a caller named, so
-- none of them proves anything: they count, and their processes are signalled only once MPS lists them.
ALTER TABLE leases ADD COLUMN kind TEXT NOT NULL DEFAULT 'recorded' CHECK (kind IN ('own', 'recorded'));
-- The command line when it was granted.
ALTER TABLE leases ADD COLUMN command TEXT NOT NULL DEFAULT '';
