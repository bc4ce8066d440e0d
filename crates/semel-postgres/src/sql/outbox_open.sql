-- Opens a small batch and reads its first page: what the mark in $7 holds is visible here, whenever the look before was, and
-- the rows are good only with the commit of this very statement. Parameters up to $11 as in the opening without a page.
-- Pages as in `outbox_small_page.sql`.
WITH opened AS (
  UPDATE semel.outbox_shard s SET prev = $6::text::pg_snapshot, open = $7::text::pg_snapshot, last_id = $8,
    batch_no = $9, batch = $11, version = s.version + 1, suspect = NULL
  WHERE s.stream = $1 AND s.shard = $2 AND s.epoch = $3 AND s.nonce = $4 AND s.version = $5 AND s.map = $10
    AND set_config('synchronous_commit', 'on', true) = 'on'
  RETURNING 1)
SELECT o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.key, o.content_type, o.headers, o.data, o.traceparent,
  o.created_at, m.mine FROM (SELECT EXISTS (SELECT FROM opened) AS mine) m
LEFT JOIN LATERAL (
  SELECT * FROM (
    SELECT * FROM semel.outbox
    WHERE xid >= pg_snapshot_xmax($6::text::pg_snapshot) AND xid < pg_snapshot_xmax($7::text::pg_snapshot)
      AND pg_visible_in_snapshot(xid, $7::text::pg_snapshot)
    UNION ALL
    SELECT b.* FROM pg_snapshot_xip($6::text::pg_snapshot) x JOIN semel.outbox b ON b.xid BETWEEN x AND x
    WHERE pg_visible_in_snapshot(x, $7::text::pg_snapshot)
    OFFSET 0) f
  WHERE f.id > $8 AND f.stream = $1 AND f.slot BETWEEN $12 AND $13
  ORDER BY f.id LIMIT $14) o ON m.mine
