-- The snapshots up to a time (--as-of): the clock of a machine may be ahead.
CREATE OR REPLACE TEMPORARY VIEW past AS
SELECT * FROM looks WHERE unix_ms <= (SELECT as_of_ms FROM settings)
