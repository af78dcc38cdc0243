-- What each remedy saves, in total and by service: at least what reports predict, and at most the memory that it is against.
-- Remedies against the same memory do not add up
WITH advised AS (
  SELECT l.service, l.process, r.remedy, COALESCE(r.saves_bytes, 0) AS saves, COALESCE(r.against_bytes, 0) AS against
  FROM latest l
  JOIN remedies r ON r.look = l.look AND r.dt = l.dt
), sums AS (
  SELECT remedy, service, COUNT(DISTINCT process) AS processes, SUM(saves) AS saves, SUM(against) AS against
  FROM advised
  GROUP BY ROLLUP (remedy, service)
), ranked AS (
  SELECT sums.*, MAX(against) OVER (PARTITION BY remedy) AS most
  FROM sums
)
SELECT remedy, COALESCE(service, '(all)') AS service, processes,
  FLOOR(saves / 1.048576e5 + 5e-1) / 10 AS saves_mib,
  FLOOR(against / 1.048576e5 + 5e-1) / 10 AS at_most_mib,
  FLOOR(saves / 1.073741824e9 * price * 1e2 + 5e-1) / 1e2 AS saves_cost,
  FLOOR(against / 1.073741824e9 * price * 1e2 + 5e-1) / 1e2 AS at_most_cost
FROM ranked CROSS JOIN settings
WHERE remedy IS NOT NULL
ORDER BY most DESC, remedy, against DESC, service
