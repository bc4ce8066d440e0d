-- What waits in a stream, at most $2 rows of it, and how far that counts.
WITH shards AS (
  SELECT prev, open, last_id, slot_first, slot_last FROM semel.outbox_shard WHERE stream = $1
  UNION ALL
  SELECT '1:1:', NULL, 0, 0, 4095 WHERE NOT EXISTS (SELECT FROM semel.outbox_shard WHERE stream = $1)
), waiting AS MATERIALIZED (
  SELECT o.created_at FROM shards s CROSS JOIN LATERAL (
    SELECT id, xid, created_at FROM semel.outbox
      WHERE xid >= pg_snapshot_xmax(s.prev) AND xid < pg_snapshot_xmax(pg_current_snapshot())
        AND stream = $1 AND slot BETWEEN s.slot_first AND s.slot_last
    UNION ALL
    SELECT i.id, i.xid, i.created_at FROM pg_snapshot_xip(s.prev) x JOIN semel.outbox i ON i.xid BETWEEN x AND x
      WHERE pg_visible_in_snapshot(x, pg_current_snapshot()) AND i.stream = $1
        AND i.slot BETWEEN s.slot_first AND s.slot_last
  ) o
  WHERE s.open IS NULL OR NOT (o.id <= s.last_id AND pg_visible_in_snapshot(o.xid, s.open))
  LIMIT $2
)
SELECT (SELECT count(*) FROM waiting) AS waiting,
  (SELECT semel.created_us(min(created_at)) FROM waiting HAVING count(*) > 0) AS oldest_us,
  coalesce((SELECT max(id) FROM semel.outbox), 0) AS counted_to
