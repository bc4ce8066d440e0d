-- Whether a partition is still what it was in the snapshot $1, by its asker's lock for good (rule O4): every row was settled
-- then, none was written since, and what the marks $2 to $5 saw, those of today see, too. $6 and $7: the streams that had rows
-- in it, and for how long they were to be kept. $8: the very table, for one of its name may have come in its place.
SELECT 'semel.{table}'::regclass::oid = $8
  AND coalesce((SELECT system_identifier FROM pg_control_system()) = (SELECT system_id FROM semel.outbox_incarnation), false)
  AND NOT EXISTS (SELECT FROM semel.{table} o
    WHERE o.xid >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(o.xid, $1::text::pg_snapshot))
  AND NOT EXISTS (
    SELECT FROM unnest($2::text[], $3::integer[], $4::integer[], $5::text[]) AS was(stream, first, last, prev)
    LEFT JOIN semel.outbox_shard s ON s.stream = was.stream AND s.slot_first <= was.last AND s.slot_last >= was.first
    WHERE was.stream = ANY ($6::text[]) AND (s.stream IS NULL
      OR pg_snapshot_xmax(s.prev) < pg_snapshot_xmax(was.prev::pg_snapshot)
      OR EXISTS (SELECT FROM pg_snapshot_xip(s.prev) x WHERE pg_visible_in_snapshot(x, was.prev::pg_snapshot))))
  AND NOT EXISTS (
    SELECT FROM unnest($6::text[], $7::bigint[]) AS was(stream, keep_ms)
    LEFT JOIN semel.outbox_keep k ON k.stream = was.stream WHERE k.keep_ms IS DISTINCT FROM was.keep_ms)
