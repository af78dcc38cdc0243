-- A shop of 2,000 customers and 500 products, with 40,000 orders of 2025, ever more from month to month, each
-- with up to 8 kB of correspondence. The same each time.
CREATE TABLE customers AS
    SELECT id, 'Customer ' || md5(id::text) AS name, md5(id::text) || '@example.org' AS email,
           id % 200 || ' ' || initcap(substr(md5('street' || id), 1, 12)) || ' Street' AS street,
           'City ' || id % 90 AS city
    FROM generate_series(1, 2000) AS id;
CREATE TABLE products AS
    SELECT id, 'Product ' || substr(md5('product' || id), 1, 10) AS name, repeat(md5('about' || id) || ' ', 8) AS description,
           100 + id * 37 % 9900 AS price_cents
    FROM generate_series(1, 500) AS id;
CREATE TABLE orders AS
    SELECT id, 1 + id * 7919::bigint % 2000 AS customer_id,
           timestamp '2025-01-01' + power(id / 40001.0, 0.6) * interval '365 days' AS placed_at,
           (ARRAY['placed', 'paid', 'sent', 'returned'])[1 + id % 4] AS status,
           'INV-' || lpad(id::text, 8, '0') AS invoice,
           repeat(md5('note' || id) || ' ', 1 + id % 240) AS note
    FROM generate_series(1, 40000) AS id;
CREATE TABLE items AS
    SELECT orders.id * 3 + number AS id, orders.id AS order_id, 1 + (orders.id * 31 + number * 97) % 500 AS product_id,
           1 + (orders.id + number) % 5 AS quantity
    FROM orders, generate_series(0, 2) AS number
    WHERE number <= orders.id % 3;
ALTER TABLE customers ADD PRIMARY KEY (id);
ALTER TABLE products ADD PRIMARY KEY (id);
ALTER TABLE orders ADD PRIMARY KEY (id);
ALTER TABLE items ADD PRIMARY KEY (id);
CREATE INDEX ON orders (placed_at);
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON items (order_id);
ANALYZE;
