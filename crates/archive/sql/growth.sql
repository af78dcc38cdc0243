-- Owners of memory that grew since the deploy (--since): the mean of a process in the window before it, and in the latest window
WITH bounds AS (
  SELECT MAX(unix_ms) AS now_ms, MAX(window_ms) AS window_ms, COALESCE(MAX(since_ms), MAX(unix_ms) - MAX(window_ms)) AS since_ms
  FROM past CROSS JOIN settings
), sized AS (
  SELECT o.service, o.look, o.process, o.owner, o.kind,
    o.slot_bytes + COALESCE(o.resident_bytes, o.exclusive_bytes + o.shared_bytes) AS bytes,
    CASE WHEN o.unix_ms >= b.since_ms THEN 1 ELSE 0 END AS is_after
  FROM owners o CROSS JOIN bounds b
  WHERE (o.unix_ms >= b.since_ms - b.window_ms AND o.unix_ms < b.since_ms)
    OR (o.unix_ms >= b.since_ms AND o.unix_ms > b.now_ms - b.window_ms AND o.unix_ms <= b.now_ms)
), counts AS (
  SELECT service, COUNT(DISTINCT CASE WHEN is_after = 0 THEN look END) AS looks_before,
    COUNT(DISTINCT CASE WHEN is_after = 1 THEN look END) AS looks_after,
    COUNT(DISTINCT CASE WHEN is_after = 1 THEN process END) AS processes
  FROM sized
  GROUP BY service
), sums AS (
  SELECT service, owner, kind, SUM(CASE WHEN is_after = 0 THEN bytes ELSE 0 END) AS before,
    SUM(CASE WHEN is_after = 1 THEN bytes ELSE 0 END) AS after
  FROM sized
  GROUP BY service, owner, kind
), means AS (
  SELECT s.service, s.owner, s.kind, c.processes, FLOOR(s.before / (c.looks_before * 1e0)) AS before,
    FLOOR(s.after / (c.looks_after * 1e0)) AS after
  FROM sums s
  JOIN counts c ON c.service = s.service
  WHERE c.looks_before > 0 AND c.looks_after > 0
)
SELECT service, owner, kind, processes,
  FLOOR(before / 1.048576e5 + 5e-1) / 10 AS before_mib,
  FLOOR(after / 1.048576e5 + 5e-1) / 10 AS after_mib,
  FLOOR((after - before) * processes / 1.048576e5 + 5e-1) / 10 AS growth_of_all_mib
FROM means
-- A tenth of a MiB: less does not show.
WHERE after - before >= 104858
ORDER BY (after - before) * processes DESC, service, owner, kind
LIMIT 20
