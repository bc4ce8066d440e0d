-- For batches of a few rows: found by their transactions, wherever their numbers are in the table.
-- A page of the open batch, and whether the batch is still its asker's: where the cursor in this database is the one in
-- memory, what was visible in it is visible here, whichever server this is (rules O2, O5).
SELECT m.mine, r.* FROM (
  SELECT EXISTS (SELECT 1 FROM semel.outbox_shard s
    WHERE s.stream = $1 AND s.shard = $2 AND s.epoch = $3 AND s.nonce = $4 AND s.batch_no = $5
      AND s.prev::text = $6 AND s.open::text = $7) AS mine) m
LEFT JOIN LATERAL (
  SELECT p.*, count(*) OVER () AS found,
    sum(coalesce(octet_length(p.data), 0)) OVER (ORDER BY p.id) AS running FROM (
    SELECT o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.key, o.content_type, o.headers,
      o.data, o.traceparent, semel.created_us(o.created_at) AS created_us
    FROM (
      SELECT * FROM semel.outbox
      WHERE xid >= pg_snapshot_xmax($6::pg_snapshot) AND xid < pg_snapshot_xmax($7::pg_snapshot)
        AND pg_visible_in_snapshot(xid, $7::pg_snapshot)
      UNION ALL
      SELECT b.* FROM pg_snapshot_xip($6::pg_snapshot) x JOIN semel.outbox b ON b.xid BETWEEN x AND x
      WHERE pg_visible_in_snapshot(x, $7::pg_snapshot)
      OFFSET 0) o
    WHERE o.id > $10 AND o.stream = $1 AND o.slot BETWEEN $8 AND $9
    ORDER BY o.id LIMIT $11
  ) p) r ON m.mine AND (r.running - coalesce(octet_length(r.data), 0) = 0 OR r.running <= $12)
ORDER BY r.id
