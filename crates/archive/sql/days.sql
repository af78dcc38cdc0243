-- Memory that is free or unreachable on each of the last 14 days (UTC): the mean of a process, for the ten services with most of it
WITH looks_of_days AS (
  SELECT service, dt, look, process
  FROM past
  WHERE unix_ms > (SELECT MAX(unix_ms) FROM past) - 1209600000
), sums AS (
  SELECT l.service, l.dt, COUNT(DISTINCT l.process) AS processes, COUNT(DISTINCT l.look) AS looks, SUM(c.bytes) AS rss,
    SUM(CASE WHEN c.cause IN ('malloc.unreturned', 'malloc.muzzy', 'malloc.fragmented', 'malloc.cached', 'malloc.top',
      'ruby.free_slots') THEN c.bytes ELSE 0 END) AS free,
    SUM(CASE WHEN c.cause = 'native.unreachable' THEN c.bytes ELSE 0 END) AS unreachable
  FROM looks_of_days l
  JOIN causes c ON c.look = l.look AND c.dt = l.dt
  GROUP BY l.service, l.dt
), means AS (
  SELECT service, dt, processes, FLOOR(rss / (looks * 1e0)) AS rss, FLOOR(free / (looks * 1e0)) AS free,
    FLOOR(unreachable / (looks * 1e0)) AS unreachable
  FROM sums
), services AS (
  SELECT service, MAX((free + unreachable) * processes) AS most
  FROM means
  GROUP BY service
), ranked AS (
  SELECT service, ROW_NUMBER() OVER (ORDER BY most DESC, service) AS place
  FROM services
)
SELECT m.service, CAST(m.dt AS STRING) AS day, m.processes,
  FLOOR(m.rss / 1.048576e5 + 5e-1) / 10 AS rss_mib,
  FLOOR(m.free / 1.048576e5 + 5e-1) / 10 AS free_mib,
  FLOOR(m.unreachable / 1.048576e5 + 5e-1) / 10 AS unreachable_mib,
  FLOOR((m.free + m.unreachable) * 1e2 / m.rss + 5e-1) AS percent
FROM means m
JOIN ranked r ON r.service = m.service
WHERE r.place <= 10
ORDER BY r.place, m.dt
