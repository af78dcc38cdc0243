-- The shortest ways over references from objects of one class to objects of another, one for each length and classes on the way:
--   SET VARIABLE from_class = 'Cache'; SET VARIABLE to_class = 'String'; SET VARIABLE longest = 6;
WITH RECURSIVE
  objects AS (SELECT address, owner FROM 'objects.parquet'),
  links AS (SELECT from_address, to_address FROM 'references.parquet' WHERE NOT block),
  reached(address, owner, path, steps) USING KEY (address) AS (
    SELECT address, owner, owner, 0 FROM objects WHERE owner = getvariable('from_class')
    UNION ALL
    SELECT objects.address, objects.owner, reached.path || ' → ' || objects.owner, reached.steps + 1
    FROM reached
    JOIN links ON links.from_address = reached.address
    JOIN objects ON objects.address = links.to_address
    LEFT JOIN recurring.reached AS known ON known.address = objects.address
    WHERE reached.steps < coalesce(getvariable('longest'), 6) AND known.address IS NULL
  )
SELECT path, steps, count(*) AS objects, printf('0x%x', min(address)) AS example
FROM reached
WHERE owner = getvariable('to_class') AND steps > 0
GROUP BY ALL
ORDER BY steps, objects DESC, path
LIMIT 40;
