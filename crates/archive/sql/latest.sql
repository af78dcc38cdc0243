-- The latest snapshot of each process that runs: those with a snapshot in the window, unless another process has started in their
-- place since then.
CREATE OR REPLACE TEMPORARY VIEW latest AS
WITH recent AS (
  SELECT *, unix_ms - COALESCE(uptime_ms, 0) AS started_ms,
    ROW_NUMBER() OVER (PARTITION BY process ORDER BY unix_ms DESC, look) AS age
  FROM past
  WHERE unix_ms > (SELECT MAX(unix_ms) FROM past) - (SELECT window_ms FROM settings)
), last AS (
  SELECT *, MAX(started_ms) OVER (PARTITION BY node, namespace, pod, container, role) AS replaced_ms
  FROM recent
  WHERE age = 1
)
SELECT * FROM last WHERE unix_ms >= replaced_ms
