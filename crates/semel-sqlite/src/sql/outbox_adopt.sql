-- After the table of events was emptied or replaced: every row that is in it is sent, again if it was sent before, in order
-- and with the same event ids. Stop the relays first. New ids are above all that a mark or a parked event still speaks of.
UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(id), 0) FROM semel_outbox_exception),
  (SELECT coalesce(max(max(prev, coalesce(open, 0))), 0) FROM semel_outbox_shard)) WHERE name = 'semel_outbox';
INSERT INTO sqlite_sequence (name, seq) SELECT 'semel_outbox', max((SELECT coalesce(max(id), 0) FROM semel_outbox_exception),
  (SELECT coalesce(max(max(prev, coalesce(open, 0))), 0) FROM semel_outbox_shard))
  WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'semel_outbox');
-- The number of batches is above all that was given out before: places of events among those of their key never go back.
UPDATE semel_outbox_shard SET prev = 0, open = NULL, last_id = 0,
  batch_no = max(batch_no + 1, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000), version = version + 1,
  suspect = NULL, log = iif(log IS NULL, NULL, 'rebind');
