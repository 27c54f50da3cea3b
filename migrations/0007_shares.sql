-- How many chunks a GPU has, as CUDA's splitter counted them: a property of the die, which is counted once.
CREATE TABLE gpu_chunks (
    gpu        TEXT PRIMARY KEY,
    census     TEXT NOT NULL CHECK (json_valid(census)),
    counted_at INTEGER NOT NULL
) STRICT;

-- The thread percentages of a daemon's layout, with the SMs that CUDA clients saw under them.
CREATE TABLE proven_shares (
    daemon    TEXT PRIMARY KEY REFERENCES daemons (name) ON DELETE CASCADE,
    layout    TEXT NOT NULL,
    version   INTEGER NOT NULL,
    shares    TEXT NOT NULL CHECK (json_valid(shares)),
    proven_at INTEGER NOT NULL
) STRICT;
