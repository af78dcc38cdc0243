-- What two dumps of a process have apart: objects that are only in the first or only in the second, by class. An object is the same if
-- its address, type and class are:
--   SET VARIABLE first = 'heap-1'; SET VARIABLE second = 'heap-2';
WITH
  first AS (SELECT address, type, owner, memsize FROM read_parquet(getvariable('first') || '/objects.parquet')),
  second AS (SELECT address, type, owner, memsize FROM read_parquet(getvariable('second') || '/objects.parquet')),
  apart AS (
    SELECT owner, -1 AS sign, memsize FROM first ANTI JOIN second USING (address, type, owner)
    UNION ALL
    SELECT owner, 1, memsize FROM second ANTI JOIN first USING (address, type, owner)
  )
SELECT owner, count(*) FILTER (sign > 0) AS new_objects, count(*) FILTER (sign < 0) AS gone_objects,
  sum(sign)::BIGINT AS more_objects, sum(sign * memsize)::BIGINT AS more_bytes
FROM apart
GROUP BY owner
ORDER BY more_bytes DESC, owner
LIMIT 40;
