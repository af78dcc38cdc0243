-- Owners of memory that grew since the deploy (--since): the mean of a process in the window before it, and in the latest window. The path
-- is the one that retains most of it in most snapshots
WITH bounds AS (
  SELECT MAX(unix_ms) AS now_ms, MAX(window_ms) AS window_ms, COALESCE(MAX(since_ms), MAX(unix_ms) - MAX(window_ms)) AS since_ms
  FROM past CROSS JOIN settings
), sized AS (
  SELECT o.service, o.look, o.process, o.owner, o.kind, o.path,
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
), paths AS (
  SELECT service, owner, kind, path,
    ROW_NUMBER() OVER (PARTITION BY service, owner, kind ORDER BY COUNT(*) DESC, path) AS place
  FROM sized
  WHERE is_after = 1 AND path IS NOT NULL
  GROUP BY service, owner, kind, path
), means AS (
  SELECT s.service, s.owner, s.kind, c.processes, FLOOR(s.before / (c.looks_before * 1e0)) AS before,
    FLOOR(s.after / (c.looks_after * 1e0)) AS after
  FROM sums s
  JOIN counts c ON c.service = s.service
  WHERE c.looks_before > 0 AND c.looks_after > 0
)
SELECT m.service, m.owner, m.kind, m.processes,
  FLOOR(m.before / 1.048576e5 + 5e-1) / 10 AS before_mib,
  FLOOR(m.after / 1.048576e5 + 5e-1) / 10 AS after_mib,
  FLOOR((m.after - m.before) * m.processes / 1.048576e5 + 5e-1) / 10 AS growth_of_all_mib, p.path
FROM means m
LEFT JOIN paths p ON p.service = m.service AND p.owner = m.owner AND p.kind = m.kind AND p.place = 1
-- A tenth of a MiB: less does not show.
WHERE m.after - m.before >= 104858
ORDER BY (m.after - m.before) * m.processes DESC, m.service, m.owner, m.kind
LIMIT 20
