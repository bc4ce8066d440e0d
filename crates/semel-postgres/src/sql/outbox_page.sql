-- For large batches: walks the primary key from where the last page ended.
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
    FROM semel.outbox o
    WHERE o.id > $10 AND o.stream = $1 AND o.slot BETWEEN $8 AND $9
      AND NOT pg_visible_in_snapshot(o.xid, $6::pg_snapshot) AND pg_visible_in_snapshot(o.xid, $7::pg_snapshot)
    ORDER BY o.id LIMIT $11
  ) p) r ON m.mine AND (r.running - coalesce(octet_length(r.data), 0) = 0 OR r.running <= $12)
ORDER BY r.id
