-- After the table of events was emptied or replaced: every row that is in it is sent, again if it was sent before, in order
-- and with the same event ids. Stop the relays first. New ids are above all that a mark or a parked event still speaks of.
-- Where it is refused as a duplicate (1062), somebody wrote an event at this moment: run it again.
INSERT INTO semel_outbox (id, stream, event_id, topic, type)
  SELECT 1 + MAX(known.id), '', CONCAT(x'73656d656c000001', UNHEX(LPAD(HEX(UUID_SHORT()), 16, '0'))), '', '' FROM (
    SELECT 0 AS id UNION ALL SELECT MAX(id) FROM semel_outbox UNION ALL SELECT MAX(id) FROM semel_outbox_exception
    UNION ALL SELECT MAX(CAST(SUBSTRING_INDEX(COALESCE(open_mark, prev_mark), ':', 1) AS SIGNED)) FROM semel_outbox_shard
    UNION ALL SELECT row_id FROM semel_outbox_home) AS known;
UPDATE semel_outbox_home SET row_id = (SELECT MAX(id) FROM semel_outbox WHERE LEFT(event_id, 8) = x'73656d656c000001')
  WHERE one = 1;
-- The number of batches is above all that was given out before: places of events among those of their key never go back.
UPDATE semel_outbox_shard SET prev_mark = '0', open_mark = NULL, last_id = 0,
  batch_no = GREATEST(batch_no + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
  version = version + 1, suspect = NULL, log = IF(log IS NULL, NULL, 'rebind');
-- A mark of the former table is not used: the next one is set.
UPDATE semel_outbox_reshard SET hold_until_us = 0;
