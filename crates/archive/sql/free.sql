-- Resident memory that is free or unreachable, by service. Money is for a month
WITH sums AS (
  SELECT l.service, COUNT(DISTINCT l.process) AS processes, SUM(c.bytes) AS rss,
    SUM(CASE WHEN c.cause IN ('malloc.unreturned', 'malloc.muzzy', 'malloc.fragmented', 'malloc.cached', 'malloc.top')
      THEN c.bytes ELSE 0 END) AS malloc,
    SUM(CASE WHEN c.cause = 'ruby.free_slots' THEN c.bytes ELSE 0 END) AS slots,
    SUM(CASE WHEN c.cause = 'native.unreachable' THEN c.bytes ELSE 0 END) AS unreachable
  FROM latest l
  JOIN causes c ON c.look = l.look AND c.dt = l.dt
  GROUP BY l.service
)
SELECT service, processes,
  FLOOR(rss / 1.048576e5 + 5e-1) / 10 AS rss_mib,
  FLOOR(malloc / 1.048576e5 + 5e-1) / 10 AS free_malloc_mib,
  FLOOR(slots / 1.048576e5 + 5e-1) / 10 AS free_slots_mib,
  FLOOR(unreachable / 1.048576e5 + 5e-1) / 10 AS unreachable_mib,
  FLOOR((malloc + slots + unreachable) * 1e2 / rss + 5e-1) AS percent,
  FLOOR((malloc + slots + unreachable) / 1.073741824e9 * price * 1e2 + 5e-1) / 1e2 AS cost
FROM sums CROSS JOIN settings
ORDER BY malloc + slots + unreachable DESC, service
