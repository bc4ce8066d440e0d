-- The first rows behind $1 that are visible in the mark $6, which is older than this statement's snapshot.
SELECT min(id) AS first, count(*) AS found FROM (
  SELECT o.id FROM semel.outbox o
  WHERE o.xid >= pg_snapshot_xmax($1::text::pg_snapshot) AND o.xid < pg_snapshot_xmax($6::text::pg_snapshot)
    AND pg_visible_in_snapshot(o.xid, $6::text::pg_snapshot) AND o.stream = $2 AND o.slot BETWEEN $3 AND $4
  UNION ALL
  SELECT o.id FROM pg_snapshot_xip($1::text::pg_snapshot) x JOIN semel.outbox o ON o.xid BETWEEN x AND x
  WHERE pg_visible_in_snapshot(x, $6::text::pg_snapshot) AND o.stream = $2 AND o.slot BETWEEN $3 AND $4
  LIMIT $5) few
