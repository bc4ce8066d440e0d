-- For batches of a few rows: found by their transactions, wherever their numbers are in the table.
-- A page of the open batch, and whether the batch is still its asker's: where the cursor in this database is the one in
-- memory, what was visible in it is visible here, whichever server this is (rules O2, O5).
-- The reader stops where it has bytes enough: a running sum here costs as much as the reading itself. One row stands on the
-- left of the join, so the rows come in the order of the right side; to ask for it once more would sort them.
SELECT o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.key, o.content_type, o.headers, o.data, o.traceparent,
  o.created_at, m.mine FROM (
  SELECT EXISTS (SELECT 1 FROM semel.outbox_shard s
    WHERE s.stream = $1 AND s.shard = $2 AND s.epoch = $3 AND s.nonce = $4 AND s.batch_no = $5
      AND s.prev::text = $6 AND s.open::text = $7) AS mine) m
LEFT JOIN LATERAL (
  SELECT * FROM (
    SELECT * FROM semel.outbox
    WHERE xid >= pg_snapshot_xmax($6::pg_snapshot) AND xid < pg_snapshot_xmax($7::pg_snapshot)
      AND pg_visible_in_snapshot(xid, (SELECT $7::pg_snapshot))
    UNION ALL
    SELECT b.* FROM pg_snapshot_xip($6::pg_snapshot) x JOIN semel.outbox b ON b.xid BETWEEN x AND x
    WHERE pg_visible_in_snapshot(x, $7::pg_snapshot)
    OFFSET 0) f
  WHERE f.id > $10 AND f.stream = $1 AND f.slot BETWEEN $8 AND $9
  ORDER BY f.id LIMIT $11) o ON m.mine
