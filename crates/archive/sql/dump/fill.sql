-- How full memory is: Ruby's heap pages by the size of their slots, malloc's arenas, and the strings with room of their own.
SELECT 'heap pages' AS part, slot_bytes || ' byte slots' AS name, count(*) AS parts, sum(bytes)::BIGINT AS bytes,
  sum(live * slot_bytes)::BIGINT AS used_bytes, round(100.0 * sum(live * slot_bytes) / sum(bytes), 1) AS percent
FROM 'pages.parquet'
GROUP BY slot_bytes
UNION ALL
SELECT 'malloc', coalesce('arena ' || arena, 'mappings'), count(*), sum(resident_bytes)::BIGINT,
  sum(resident_bytes) FILTER (state IN ('in_use', 'mmapped'))::BIGINT,
  round(100.0 * sum(resident_bytes) FILTER (state IN ('in_use', 'mmapped')) / nullif(sum(resident_bytes), 0), 1)
FROM 'blocks.parquet'
GROUP BY arena
UNION ALL
SELECT 'strings', owner, count(*), sum(capacity)::BIGINT, sum(least(length, capacity))::BIGINT,
  round(100.0 * sum(least(length, capacity)) / nullif(sum(capacity), 0), 1)
FROM 'objects.parquet'
WHERE type = 'STRING' AND capacity IS NOT NULL
GROUP BY owner
ORDER BY part, bytes DESC, name;
