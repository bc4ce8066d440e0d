-- Walks over $6 rows of {table} (the outbox, or a partition of it) behind the place $4, $5, in the order of transactions, and
-- deletes at most $2 of stream $3 that are old and that their shard's saved prev sees. Rows of streams that nobody registered
-- have no shard, and stay. Nothing is deleted where the snapshots mean nothing.
WITH walked AS MATERIALIZED (
  SELECT o.id, o.xid, o.slot, o.created_at, o.stream = $3 AS mine FROM semel.{table} o
  WHERE (o.xid, o.id) > ($4::text::xid8, $5::bigint) ORDER BY o.xid, o.id LIMIT $6
), judged AS MATERIALIZED (
  SELECT w.id, w.xid, w.created_at, w.created_at < clock_timestamp() - $1::float8 * interval '1 millisecond'
      AND EXISTS (SELECT FROM semel.outbox_shard s
        WHERE s.stream = $3 AND w.slot BETWEEN s.slot_first AND s.slot_last AND pg_visible_in_snapshot(w.xid, s.prev))
      AND (SELECT system_identifier FROM pg_control_system()) = (SELECT system_id FROM semel.outbox_incarnation) AS due
  FROM walked w WHERE w.mine
), gone AS (
  -- Looked at once more where it is locked: an adoption may just have given it a new transaction.
  DELETE FROM semel.{table} WHERE id IN (
    SELECT o.id FROM semel.{table} o
    WHERE o.id = ANY (ARRAY(SELECT id FROM judged WHERE due ORDER BY xid, id LIMIT $2))
      AND EXISTS (SELECT FROM semel.outbox_shard s
        WHERE s.stream = $3 AND o.slot BETWEEN s.slot_first AND s.slot_last AND pg_visible_in_snapshot(o.xid, s.prev))
    FOR UPDATE OF o SKIP LOCKED)
  RETURNING id
)
SELECT (SELECT count(*) FROM gone) AS deleted,
  (SELECT count(*) FROM walked) AS walked,
  EXISTS (SELECT FROM judged WHERE due) AS due,
  EXISTS (SELECT FROM judged WHERE NOT due AND created_at <= clock_timestamp()
    AND created_at >= clock_timestamp() - $1::float8 * interval '1 millisecond') AS young,
  l.xid::text AS last_xid, l.id AS last_id, k.xid::text AS kept_xid, k.id AS kept_id,
  (SELECT pg_snapshot_xmin(prev)::text FROM semel.outbox_shard WHERE stream = $3 ORDER BY pg_snapshot_xmin(prev) LIMIT 1) AS low,
  pg_snapshot_xmax(pg_current_snapshot())::text AS high
FROM (SELECT) one
LEFT JOIN (SELECT xid, id FROM walked ORDER BY xid DESC, id DESC LIMIT 1) l ON true
LEFT JOIN (SELECT xid, id FROM judged WHERE id NOT IN (SELECT id FROM gone) ORDER BY xid, id LIMIT 1) k ON true
