-- Versions of gems whose processes grow faster than those of the same service with another version of the gem. This is a
-- correlation: versions that are always deployed together have the same figures
WITH loaded AS (
  SELECT DISTINCT process, gem, version FROM gems WHERE version IS NOT NULL
), growth AS (
  SELECT service, process, SUM(bytes_per_hour * looks) AS weighted, SUM(looks) AS looks
  FROM trends
  GROUP BY service, process
), versions AS (
  SELECT g.service, l.gem, l.version, COUNT(*) AS processes, SUM(g.weighted) AS weighted, SUM(g.looks) AS looks
  FROM loaded l
  JOIN growth g ON g.process = l.process
  GROUP BY g.service, l.gem, l.version
), compared AS (
  SELECT *, SUM(weighted) OVER (PARTITION BY service, gem) - weighted AS other_weighted,
    SUM(looks) OVER (PARTITION BY service, gem) - looks AS other_looks,
    SUM(processes) OVER (PARTITION BY service, gem) - processes AS other_processes
  FROM versions
), rates AS (
  SELECT service, gem, version, processes, other_processes, weighted / (looks * 1.048576e6) AS mib_per_hour,
    other_weighted / (other_looks * 1.048576e6) AS others_mib_per_hour
  FROM compared
  WHERE other_looks > 0
)
SELECT service, gem, version, processes, FLOOR(mib_per_hour * 100) / 100 AS mib_per_hour,
  other_processes, FLOOR(others_mib_per_hour * 100) / 100 AS others_mib_per_hour
FROM rates
WHERE mib_per_hour >= 0.1 AND mib_per_hour > 2 * others_mib_per_hour
ORDER BY mib_per_hour - others_mib_per_hour DESC, service, gem, version
LIMIT 20
