-- The classes of the objects without which most memory would be freed: for each the classes of the objects that it dominates directly.
-- It needs a dump with --retained.
SELECT above.owner AS dominator, own.owner, count(*) AS objects, sum(own.retained_bytes)::BIGINT AS retained_bytes
FROM 'objects.parquet' AS own
JOIN 'objects.parquet' AS above ON above.address = own.dominator
GROUP BY ALL
ORDER BY retained_bytes DESC, dominator, own.owner
LIMIT 40;
