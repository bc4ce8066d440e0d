-- Opens a small batch and reads the first rows of it: what the mark in $7 holds is visible here, because it is written
-- only where it fits, and the rows are good only with the commit of this very statement. Parameters up to $11 as in the opening
-- without rows. Fewer rows and bytes than the server gathers before it sends: a reader that stands still meanwhile would keep
-- the row of its shard locked, whatever its lease says.
-- Rows as in `outbox_small_page.sql`.
WITH opened AS (
  UPDATE semel.outbox_shard s SET prev = $6::text::pg_snapshot, open = $7::text::pg_snapshot, last_id = $8,
    batch_no = $9, batch = $11, version = s.version + 1, suspect = NULL
  WHERE {opening}
  RETURNING 1)
SELECT o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.key, o.content_type, o.headers, o.data, o.traceparent,
  o.created_at, m.mine FROM (SELECT EXISTS (SELECT FROM opened) AS mine) m
LEFT JOIN LATERAL (
  SELECT * FROM (
    SELECT few.*, sum(150 + octet_length(stream) + octet_length(topic) + octet_length(type) + octet_length(source)
      + coalesce(octet_length(key), 0) + coalesce(octet_length(content_type), 0) + coalesce(octet_length(headers), 0)
      + coalesce(octet_length(data), 0) + coalesce(octet_length(traceparent), 0)) OVER (ORDER BY id) AS bytes FROM (
      SELECT * FROM (
        SELECT * FROM semel.outbox
        WHERE xid >= pg_snapshot_xmax($6::text::pg_snapshot) AND xid < pg_snapshot_xmax($7::text::pg_snapshot)
          AND pg_visible_in_snapshot(xid, $7::text::pg_snapshot)
        UNION ALL
        SELECT b.* FROM pg_snapshot_xip($6::text::pg_snapshot) x JOIN semel.outbox b ON b.xid BETWEEN x AND x
        WHERE pg_visible_in_snapshot(x, $7::text::pg_snapshot)
        OFFSET 0) f
      WHERE f.id > $8 AND f.stream = $1 AND f.slot BETWEEN $12 AND $13
      ORDER BY f.id LIMIT $14) few) sized
  WHERE bytes <= $15) o ON m.mine
