-- One look: the snapshot of this very statement, whether this server may be asked at all, and the first rows behind
-- $1. Whatever this statement sees is visible in its snapshot. It stands alone, so it has no transaction number (rule O6).
-- The second part looks only at transactions that were open in $1 and have ended since: the rows of one that is still
-- open are not even touched. The upper bound and BETWEEN change nothing about what is found: they keep the planner on the
-- index, whose statistics say little about the newest transactions.
SELECT pg_current_snapshot()::text AS cur,
  pg_is_in_recovery() AS standby,
  coalesce((SELECT system_identifier FROM pg_control_system())
    = (SELECT system_id FROM semel.outbox_incarnation), false) AS home,
  pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax($1::pg_snapshot) AS forward,
  b.first, b.found, s.map,
  r.mark::text AS mark, r.hold_until > clock_timestamp() AS held,
  r.hold_until + $7::float8 * interval '1 ms' < clock_timestamp() AS rested
FROM (SELECT min(id) AS first, count(*) AS found FROM (
  SELECT o.id FROM semel.outbox o
  WHERE o.xid >= pg_snapshot_xmax($1::pg_snapshot) AND o.xid < pg_snapshot_xmax(pg_current_snapshot())
    AND o.stream = $2 AND o.slot BETWEEN $3 AND $4
  UNION ALL
  SELECT o.id FROM pg_snapshot_xip($1::pg_snapshot) x JOIN semel.outbox o ON o.xid BETWEEN x AND x
  WHERE pg_visible_in_snapshot(x, pg_current_snapshot()) AND o.stream = $2 AND o.slot BETWEEN $3 AND $4
  LIMIT $5) few) b
LEFT JOIN semel.outbox_shard s ON s.stream = $2 AND s.shard = $6
LEFT JOIN semel.outbox_reshard r ON r.stream = $2
