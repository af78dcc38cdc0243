-- Containers that reach their memory limit in the next 30 days if they grow as in the latest window
WITH containers AS (
  SELECT l.service, l.node, l.namespace, l.pod, l.container, COUNT(*) AS processes,
    -- Files in memory and other programs take memory, too.
    GREATEST(SUM(COALESCE(l.pss_bytes, l.rss_bytes)), COALESCE(MAX(l.used_bytes), 0)) AS used, MAX(l.limit_bytes) AS most, SUM(t.bytes_per_hour) AS growth
  FROM latest l
  LEFT JOIN trends t ON t.process = l.process AND t.age = 0
  GROUP BY l.service, l.node, l.namespace, l.pod, l.container
), times AS (
  SELECT *, GREATEST(most - used, 0) / (growth * 1e0) AS hours
  FROM containers
  WHERE growth > 0 AND most IS NOT NULL
)
SELECT service, node, namespace, pod, container, processes, FLOOR(used / 1.048576e6) AS used_mib,
  FLOOR(most / 1.048576e6) AS limit_mib, FLOOR(growth / 1.048576e5) / 10 AS mib_per_hour, FLOOR(hours) AS hours
FROM times
WHERE hours <= 720
ORDER BY hours, service, node, namespace, pod, container
LIMIT 20
