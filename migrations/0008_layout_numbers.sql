-- The highest number that a version of a layout ever had: a layout that is written again after it was forgotten goes on from
-- there, so that a number never means two things.
CREATE TABLE layout_numbers (
    layout  TEXT PRIMARY KEY,
    highest INTEGER NOT NULL CHECK (highest > 0)
) STRICT;
INSERT INTO layout_numbers SELECT layout, max(version) FROM layout_versions GROUP BY layout;
CREATE TRIGGER layout_versions_counted AFTER INSERT ON layout_versions
BEGIN
    INSERT INTO layout_numbers VALUES (NEW.layout, NEW.version)
    ON CONFLICT (layout) DO UPDATE SET highest = max(highest, excluded.highest);
END;
