-- A stream with events in a partition that are not sent yet: seen by the index on transactions, without reading all of it.
SELECT s.stream FROM semel.outbox_shard s
WHERE EXISTS (SELECT FROM semel.{table} o
    WHERE o.xid >= pg_snapshot_xmax(s.prev) AND o.stream = s.stream AND o.slot BETWEEN s.slot_first AND s.slot_last)
  OR EXISTS (SELECT FROM pg_snapshot_xip(s.prev) x JOIN semel.{table} o ON o.xid = x
    WHERE o.stream = s.stream AND o.slot BETWEEN s.slot_first AND s.slot_last)
ORDER BY s.stream LIMIT 1
