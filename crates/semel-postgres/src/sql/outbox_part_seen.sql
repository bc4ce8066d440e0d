-- What a partition holds, stream by stream, and the marks by which that was judged; one row at least, with the snapshot of
-- this very statement. It takes no lock that anybody waits for.
SELECT pg_current_snapshot()::text AS seen, 'semel.{table}'::regclass::oid AS oid,
  coalesce((SELECT system_identifier FROM pg_control_system())
    = (SELECT system_id FROM semel.outbox_incarnation), false) AS home,
  r.stream, r.rows, r.waiting, k.keep_ms, semel.us(least(r.newest, timestamptz '9999-12-31')) AS newest_us,
  semel.us(clock_timestamp()) AS now_us, (semel.us(clock_timestamp()) - semel.us(statement_timestamp())) / 1000 AS took_ms,
  ARRAY(SELECT s.stream FROM semel.outbox_shard s ORDER BY s.stream, s.shard) AS streams,
  ARRAY(SELECT s.slot_first FROM semel.outbox_shard s ORDER BY s.stream, s.shard) AS firsts,
  ARRAY(SELECT s.slot_last FROM semel.outbox_shard s ORDER BY s.stream, s.shard) AS lasts,
  ARRAY(SELECT s.prev::text FROM semel.outbox_shard s ORDER BY s.stream, s.shard) AS prevs
FROM (SELECT) one
LEFT JOIN (
  SELECT o.stream, count(*) AS rows, count(*) FILTER (WHERE s.stream IS NULL) AS waiting, max(o.created_at) AS newest
  FROM semel.{table} o LEFT JOIN semel.outbox_shard s
    ON s.stream = o.stream AND o.slot BETWEEN s.slot_first AND s.slot_last AND pg_visible_in_snapshot(o.xid, s.prev)
  GROUP BY o.stream) r ON true
LEFT JOIN semel.outbox_keep k ON k.stream = r.stream
