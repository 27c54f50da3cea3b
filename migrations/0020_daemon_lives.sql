-- A name may be given to another daemon after one was deleted: the new one counts its own generations, and its page shows its own
-- events. Its revision, which is the entity tag, still goes on from where the one before ended.
ALTER TABLE daemons ADD COLUMN events_from INTEGER NOT NULL DEFAULT 0;
UPDATE daemons SET events_from = coalesce(
    (SELECT max(id) FROM events
     WHERE events.daemon = daemons.name AND events.type IN ('daemon.created', 'daemon.adopted')), 0);

-- A change of a layout that is taken back is held to the IDs on record, as any other run: there is nothing to choose.
ALTER TABLE layout_changes DROP COLUMN on_difference;
