-- Processes that started since the deploy (--since), and those that ran in the window before it, at the same age: the mean of a process by cause
WITH bounds AS (
  SELECT COALESCE(MAX(since_ms), MAX(unix_ms) - MAX(window_ms)) AS since_ms, MAX(window_ms) AS window_ms
  FROM past CROSS JOIN settings
), aged AS (
  SELECT p.service, p.dt, p.look, p.process, p.unix_ms, p.uptime_ms, b.since_ms, b.window_ms,
    CASE WHEN p.unix_ms - p.uptime_ms >= b.since_ms THEN 1 ELSE 0 END AS is_after
  FROM past p CROSS JOIN bounds b
  WHERE p.uptime_ms IS NOT NULL
), ages AS (
  -- Young processes are smaller, whatever they run.
  SELECT service, MAX(uptime_ms) AS most_ms
  FROM aged
  WHERE is_after = 1
  GROUP BY service
), running AS (
  SELECT DISTINCT process
  FROM aged
  WHERE is_after = 1 OR (unix_ms >= since_ms - window_ms AND unix_ms < since_ms)
), compared AS (
  SELECT a.service, a.dt, a.look, a.process, a.is_after, g.most_ms
  FROM aged a
  JOIN running r ON r.process = a.process
  JOIN ages g ON g.service = a.service
  WHERE a.uptime_ms <= g.most_ms AND (a.is_after = 1 OR a.unix_ms < a.since_ms)
), counts AS (
  SELECT service, MAX(most_ms) AS most_ms,
    COUNT(DISTINCT CASE WHEN is_after = 0 THEN look END) AS looks_before,
    COUNT(DISTINCT CASE WHEN is_after = 1 THEN look END) AS looks_after,
    COUNT(DISTINCT CASE WHEN is_after = 0 THEN process END) AS processes_before,
    COUNT(DISTINCT CASE WHEN is_after = 1 THEN process END) AS processes
  FROM compared
  GROUP BY service
), sums AS (
  SELECT x.service, c.cause, SUM(CASE WHEN x.is_after = 0 THEN c.bytes ELSE 0 END) AS before,
    SUM(CASE WHEN x.is_after = 1 THEN c.bytes ELSE 0 END) AS after
  FROM compared x
  JOIN causes c ON c.look = x.look AND c.dt = x.dt
  GROUP BY ROLLUP (x.service, c.cause)
), means AS (
  SELECT s.service, COALESCE(s.cause, '(all)') AS cause, c.most_ms, c.processes_before, c.processes,
    FLOOR(s.before / (c.looks_before * 1e0)) AS before, FLOOR(s.after / (c.looks_after * 1e0)) AS after
  FROM sums s
  JOIN counts c ON c.service = s.service
  WHERE c.looks_before > 0 AND c.looks_after > 0
), changes AS (
  SELECT *, (after - before) * processes AS change, MAX(ABS(after - before) * processes) OVER (PARTITION BY service) AS most
  FROM means
)
SELECT service, cause, FLOOR(most_ms / 3.6e5 + 5e-1) / 10 AS hours, processes_before, processes,
  FLOOR(before / 1.048576e5 + 5e-1) / 10 AS before_mib,
  FLOOR(after / 1.048576e5 + 5e-1) / 10 AS after_mib,
  FLOOR(change / 1.048576e5 + 5e-1) / 10 AS change_of_all_mib
FROM changes
-- A tenth of a MiB: less does not show.
WHERE ABS(after - before) >= 104858
ORDER BY most DESC, service, ABS(change) DESC, cause
LIMIT 40
