-- Moves what is due, in the order of times. What an open transaction is cancelling is locked, and passed by.
WITH due AS MATERIALIZED (
  SELECT event_id FROM semel.outbox_delayed
  WHERE stream = $1 AND due <= statement_timestamp() AND ($3::uuid IS NULL OR event_id = $3) ORDER BY due, n LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM semel.outbox_delayed d USING due WHERE d.event_id = due.event_id RETURNING d.*
), moved AS (
  INSERT INTO semel.outbox (stream, event_id, topic, type, source, key, content_type, headers, data, traceparent)
  SELECT stream, event_id, topic, type, source, key, content_type, headers, data, traceparent
  FROM gone ORDER BY due, n
  ON CONFLICT (event_id) DO NOTHING RETURNING event_id
)
SELECT (SELECT count(*) FROM moved) AS moved,
  ARRAY(SELECT event_id FROM gone EXCEPT SELECT event_id FROM moved) AS repeated
