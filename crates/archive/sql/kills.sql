-- Processes that the kernel killed at a memory limit: their last snapshots (UTC) with the seconds to the kill, and the owner with most memory
WITH last AS (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY process ORDER BY unix_ms DESC, look) AS place,
    CAST(FLOOR((unix_ms % 86400000) / 6e4) AS BIGINT) AS minutes
  FROM kills
  WHERE unix_ms <= (SELECT as_of_ms FROM settings)
)
SELECT service, node, namespace, pod, container, role, pid, CAST(dt AS STRING) AS day,
  CONCAT(LPAD(CAST(CAST(FLOOR(minutes / 6e1) AS BIGINT) AS STRING), 2, '0'), ':',
    LPAD(CAST(minutes % 60 AS STRING), 2, '0')) AS time,
  FLOOR(after_ms / 1e2 + 5e-1) / 10 AS seconds,
  FLOOR(rss_bytes / 1.048576e5 + 5e-1) / 10 AS rss_mib,
  FLOOR(used_bytes / 1.048576e5 + 5e-1) / 10 AS used_mib,
  FLOOR(limit_bytes / 1.048576e5 + 5e-1) / 10 AS limit_mib,
  FLOOR(tmpfs_bytes / 1.048576e5 + 5e-1) / 10 AS tmpfs_mib,
  verdict, owner, FLOOR(owner_bytes / 1.048576e5 + 5e-1) / 10 AS owner_mib, path
FROM last
WHERE place = 1
ORDER BY unix_ms DESC, look
LIMIT 40
