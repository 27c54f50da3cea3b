-- When the pipe directory was made, in unix nanoseconds: the number of an inode may be given again at once. NULL where the
-- file system does not keep it, and in rows from before.
ALTER TABLE incarnations ADD COLUMN pipe_born INTEGER;
