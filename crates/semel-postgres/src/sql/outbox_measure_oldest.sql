-- The oldest of the first events that wait in each shard of a stream.
WITH shards AS (
  SELECT prev, open, last_id, slot_first, slot_last FROM semel.outbox_shard WHERE stream = $1
  UNION ALL
  SELECT '1:1:', NULL, 0, 0, 4095 WHERE NOT EXISTS (SELECT FROM semel.outbox_shard WHERE stream = $1)
)
SELECT CASE WHEN count(*) > 0 THEN semel.created_us(min(f.created_at)) END AS oldest_us FROM shards s CROSS JOIN LATERAL (
  (SELECT o.created_at FROM semel.outbox o
    WHERE o.xid >= pg_snapshot_xmax(s.prev) AND o.xid < pg_snapshot_xmax(pg_current_snapshot())
      AND o.stream = $1 AND o.slot BETWEEN s.slot_first AND s.slot_last
      AND (s.open IS NULL OR NOT (o.id <= s.last_id AND pg_visible_in_snapshot(o.xid, s.open)))
    ORDER BY o.xid, o.id LIMIT 1)
  UNION ALL
  SELECT i.created_at FROM pg_snapshot_xip(s.prev) x CROSS JOIN LATERAL (
    SELECT i.created_at FROM semel.outbox i
      WHERE i.xid BETWEEN x AND x AND pg_visible_in_snapshot(x, pg_current_snapshot())
        AND i.stream = $1 AND i.slot BETWEEN s.slot_first AND s.slot_last
        AND (s.open IS NULL OR NOT (i.id <= s.last_id AND pg_visible_in_snapshot(i.xid, s.open)))
      ORDER BY i.id LIMIT 1) i
) f
