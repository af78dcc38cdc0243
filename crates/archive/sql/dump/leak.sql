-- The leak method of three dumps: objects that the second dump has and the first has not, and that the third still has. If the
-- program did the same work between them, most of the rest was freed by then. File and line are NULL if allocations were not traced:
--   SET VARIABLE first = 'heap-1'; SET VARIABLE second = 'heap-2'; SET VARIABLE third = 'heap-3';
WITH
  first AS (SELECT address, type, owner FROM read_parquet(getvariable('first') || '/objects.parquet')),
  second AS (SELECT address, type, owner FROM read_parquet(getvariable('second') || '/objects.parquet')),
  third AS (SELECT * FROM read_parquet(getvariable('third') || '/objects.parquet'))
SELECT owner, file, line, root, count(*) AS objects, sum(memsize)::BIGINT AS bytes, printf('0x%x', min(address)) AS example
FROM third
SEMI JOIN second USING (address, type, owner)
ANTI JOIN first USING (address, type, owner)
WHERE root IS NOT NULL
GROUP BY owner, file, line, root
ORDER BY bytes DESC, owner, root
LIMIT 40;
