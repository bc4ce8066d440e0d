-- For large batches: walks the primary key from where the last page ended.
-- A page of the open batch, and whether the batch is still its asker's: where the cursor in this database is the one in
-- memory, what was visible in it is visible here, whichever server this is (rules O2, O5).
-- The reader stops where it has bytes enough: a running sum here costs as much as the reading itself. One row stands on the
-- left of the join, so the rows come in the order of the right side; to ask for it once more would sort them.
-- The marks are read in queries of their own: where they stand bare, they are read from their texts again for each row.
SELECT o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.key, o.content_type, o.headers, o.data, o.traceparent,
  o.created_at, m.mine FROM (
  SELECT EXISTS (SELECT 1 FROM semel.outbox_shard s
    WHERE s.stream = $1 AND s.shard = $2 AND s.epoch = $3 AND s.nonce = $4 AND s.batch_no = $5
      AND s.prev::text = $6 AND s.open::text = $7) AS mine) m
LEFT JOIN LATERAL (
  SELECT * FROM semel.outbox o
  WHERE o.id > $10 AND o.stream = $1 AND o.slot BETWEEN $8 AND $9
    AND NOT pg_visible_in_snapshot(o.xid, (SELECT $6::pg_snapshot))
    AND pg_visible_in_snapshot(o.xid, (SELECT $7::pg_snapshot))
  ORDER BY o.id LIMIT $11) o ON m.mine
