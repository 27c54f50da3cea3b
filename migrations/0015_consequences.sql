-- What follows on an event is found by it: each such row holds the event's number.
CREATE INDEX events_by_cause ON events (json_extract(cause, '$.id')) WHERE json_extract(cause, '$.id') IS NOT NULL;
