-- A control process that somebody else started carries no token of ours: it is found again by its PID and start time.
ALTER TABLE incarnations ADD COLUMN is_foreign INTEGER NOT NULL DEFAULT 0 CHECK (is_foreign IN (0, 1));

-- Where such a process lives, and what took its place there; null for the directories that this manager gives.
ALTER TABLE incarnations ADD COLUMN pipe_directory TEXT;
ALTER TABLE incarnations ADD COLUMN log_directory TEXT;
