-- The lowest number of a batch too large for one look. OFFSET 0 keeps the planner from walking the primary key.
SELECT min(id) FROM (
  SELECT o.id FROM semel.outbox o
  WHERE o.xid >= pg_snapshot_xmax($1::pg_snapshot) AND o.xid < pg_snapshot_xmax($2::pg_snapshot)
    AND pg_visible_in_snapshot(o.xid, (SELECT $2::pg_snapshot))
  UNION ALL
  SELECT o.id FROM pg_snapshot_xip($1::pg_snapshot) x JOIN semel.outbox o ON o.xid BETWEEN x AND x
  WHERE pg_visible_in_snapshot(x, $2::pg_snapshot)
  OFFSET 0) b
