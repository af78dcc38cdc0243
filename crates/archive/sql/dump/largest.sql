-- The objects that retain most, with the root that retains them. It needs a dump with --retained.
SELECT printf('0x%x', address) AS object, owner, retained_bytes, retained_objects, root
FROM 'objects.parquet'
WHERE retained_bytes IS NOT NULL
ORDER BY retained_bytes DESC, address
LIMIT 20;
