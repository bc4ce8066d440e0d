-- Which of these shards ($1 to $6 side by side: stream, shard, first and last slot, prev, version) may have something to
-- open: what outbox_look.sql finds, for all of them in one snapshot, less what an opening looks at besides. Whatever is not as
-- usual counts as worth it: the opening says what it is.
SELECT NOT coalesce(NOT pg_is_in_recovery()
    AND (SELECT system_identifier FROM pg_control_system()) = (SELECT system_id FROM semel.outbox_incarnation)
    AND pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax(a.prev)
    AND EXISTS (SELECT FROM semel.outbox_shard s WHERE s.stream = a.stream AND s.shard = a.shard AND s.version = a.version)
    AND NOT EXISTS (SELECT FROM semel.outbox_reshard r WHERE r.stream = a.stream)
    AND NOT EXISTS (SELECT FROM semel.outbox o
      WHERE o.xid >= pg_snapshot_xmax(a.prev) AND o.xid < pg_snapshot_xmax(pg_current_snapshot())
        AND o.stream = a.stream AND o.slot BETWEEN a.first AND a.last)
    AND NOT EXISTS (SELECT FROM pg_snapshot_xip(a.prev) x JOIN semel.outbox o ON o.xid BETWEEN x AND x
      WHERE pg_visible_in_snapshot(x, pg_current_snapshot()) AND o.stream = a.stream AND o.slot BETWEEN a.first AND a.last),
  false) AS worth
FROM ROWS FROM (unnest($1::text[]), unnest($2::int[]), unnest($3::int[]), unnest($4::int[]), unnest($5::text[]::pg_snapshot[]),
  unnest($6::bigint[])) WITH ORDINALITY AS a(stream, shard, first, last, prev, version, n)
ORDER BY a.n
