-- Snapshots that are later than --as-of, by machine
SELECT COALESCE(node, '') AS node, COUNT(*) AS snapshots
FROM looks
WHERE unix_ms > (SELECT as_of_ms FROM settings)
GROUP BY COALESCE(node, '')
ORDER BY snapshots DESC, node
