-- Processes with far more memory than the median of their replicas, and the cause that differs most
WITH named AS (
  SELECT *, CASE WHEN role LIKE '% worker %' THEN REPLACE(role, CONCAT(' worker ', SPLIT_PART(role, ' worker ', 2)), ' worker')
    ELSE role END AS kind
  FROM latest
), medians AS (
  SELECT service, container, kind, MEDIAN(rss_bytes) AS median, COUNT(*) AS replicas
  FROM named
  GROUP BY service, container, kind
), differing AS (
  SELECT n.*, m.median, m.replicas, ABS(n.rss_bytes - m.median) AS deviation
  FROM named n
  JOIN medians m ON m.service = n.service AND m.container = n.container AND m.kind = n.kind
), spreads AS (
  SELECT service, container, kind, MEDIAN(deviation) AS spread
  FROM differing
  GROUP BY service, container, kind
), outliers AS (
  -- Beyond four times the spread, which for a normal distribution is 2.7 standard deviations, and a quarter above the median.
  SELECT d.service, d.dt, d.look, d.container, d.kind, d.node, d.namespace, d.pod, d.role, d.pid, d.rss_bytes, d.median, d.replicas
  FROM differing d
  JOIN spreads s ON s.service = d.service AND s.container = d.container AND s.kind = d.kind
  WHERE d.replicas >= 4 AND d.rss_bytes > d.median + GREATEST(4 * s.spread, d.median / 4)
), of_replicas AS (
  SELECT n.service, n.container, n.kind, c.cause, MEDIAN(c.bytes) AS median
  FROM named n
  JOIN causes c ON c.look = n.look AND c.dt = n.dt
  WHERE n.service IN (SELECT service FROM outliers)
  GROUP BY n.service, n.container, n.kind, c.cause
), by_cause AS (
  SELECT o.*, c.cause, c.bytes - COALESCE(r.median, 0) AS more,
    ROW_NUMBER() OVER (PARTITION BY o.look ORDER BY c.bytes - COALESCE(r.median, 0) DESC, c.cause) AS place
  FROM outliers o
  JOIN causes c ON c.look = o.look AND c.dt = o.dt
  LEFT JOIN of_replicas r ON r.service = o.service AND r.container = o.container AND r.kind = o.kind AND r.cause = c.cause
)
SELECT service, node, namespace, pod, container, role, pid, replicas,
  FLOOR(rss_bytes / 1.048576e6) AS rss_mib, FLOOR(median / 1.048576e6) AS median_mib,
  cause, FLOOR(more / 1.048576e6) AS more_by_cause_mib
FROM by_cause
WHERE place = 1
ORDER BY rss_bytes - median DESC, look
LIMIT 20
