-- The growth of each process by least squares, in bytes per hour, for each window of time before the latest snapshot (age 0, 1 …).
-- The first hour of a process is left out. Sums are of integers, so that all engines get the same result.
CREATE OR REPLACE TEMPORARY VIEW trends AS
WITH points AS (
  SELECT service, process, CAST(FLOOR(before_ms / window_ms) AS BIGINT) AS age,
    CAST(FLOOR((before_ms % window_ms) / 60000) AS BIGINT) AS minutes,
    CAST(FLOOR(rss_bytes / 1024) AS BIGINT) AS kib
  FROM (
    SELECT service, process, rss_bytes, (SELECT MAX(unix_ms) FROM past) - unix_ms AS before_ms,
      (SELECT window_ms FROM settings) AS window_ms
    FROM past
    WHERE COALESCE(uptime_ms, 3600000) >= 3600000
  ) recent
), sums AS (
  SELECT service, process, age, COUNT(*) AS looks,
    CAST(SUM(minutes) AS DOUBLE) AS x, CAST(SUM(kib) AS DOUBLE) AS y,
    CAST(SUM(minutes * minutes) AS DOUBLE) AS xx, CAST(SUM(minutes * kib) AS DOUBLE) AS xy
  FROM points
  GROUP BY service, process, age
)
-- Minutes count back from the latest snapshot, so growth is a negative slope.
SELECT service, process, age, looks,
  CAST(FLOOR((x * y - looks * xy) / (looks * xx - x * x) * 61440) AS BIGINT) AS bytes_per_hour
FROM sums
WHERE looks >= 3 AND looks * xx > x * x
