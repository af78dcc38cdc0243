-- Memory limits that are higher than the containers of a service need: a fifth more than the most that one had, and 30 days of its
-- growth. Money is for a month
WITH places AS (
  SELECT service, node, namespace, pod, container, role, MAX(COALESCE(pss_bytes, rss_bytes)) AS most, MAX(used_bytes) AS used,
    MIN(unix_ms) AS first_ms
  FROM past
  GROUP BY service, node, namespace, pod, container, role
), containers AS (
  SELECT l.service, l.node, l.namespace, l.pod, l.container, MAX(l.limit_bytes) AS most, MAX(p.first_ms) AS first_ms,
    -- Files in memory and other programs take memory, too.
    GREATEST(SUM(p.most), COALESCE(MAX(p.used), 0)) * 12e-1 + GREATEST(COALESCE(SUM(t.bytes_per_hour), 0), 0) * 720e0 AS need
  FROM latest l
  JOIN places p ON p.service = l.service AND p.node = l.node AND p.namespace = l.namespace AND p.pod = l.pod
    AND p.container = l.container AND p.role = l.role
  LEFT JOIN trends t ON t.process = l.process AND t.age = 0
  GROUP BY l.service, l.node, l.namespace, l.pod, l.container
), services AS (
  SELECT service, COUNT(*) AS containers, SUM(most) AS limits, MAX(need) AS need
  FROM containers
  WHERE most IS NOT NULL
  GROUP BY service
  HAVING MIN((SELECT MAX(unix_ms) FROM past) - first_ms) >= 86400000
)
SELECT service, containers, FLOOR(limits / containers / 1.048576e6) AS limit_mib, CEIL(need / 1.048576e6) AS need_mib,
  FLOOR((limits - containers * need) / 1.073741824e8) / 10 AS spare_gib,
  FLOOR((limits - containers * need) / 1.073741824e9 * price * 1e2 + 5e-1) / 1e2 AS cost
FROM services CROSS JOIN settings
WHERE limits > containers * need
ORDER BY limits - containers * need DESC, service
LIMIT 20
