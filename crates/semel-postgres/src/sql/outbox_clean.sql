-- Rows that their shard's saved prev sees are settled. Rows of streams that nobody registered have no shard, and stay.
-- {table} is the outbox, or a partition of it. Nothing is deleted where the snapshots mean nothing.
DELETE FROM semel.{table} WHERE id IN (
  SELECT o.id FROM semel.{table} o
  JOIN semel.outbox_shard s ON s.stream = o.stream AND o.slot BETWEEN s.slot_first AND s.slot_last
  WHERE o.stream = $3 AND pg_visible_in_snapshot(o.xid, s.prev) AND o.created_at < clock_timestamp() - $1::float8 * interval '1 millisecond'
    AND (SELECT system_identifier FROM pg_control_system())
      = (SELECT system_id FROM semel.outbox_incarnation)
  ORDER BY o.id LIMIT $2
  FOR UPDATE OF o SKIP LOCKED)
