-- After the table of events was emptied or replaced: every row that is in it is sent, again if it was sent before, in order
-- and with the same event ids. Stop the relays first.
INSERT INTO semel_outbox (stream, event_id, topic, type) VALUES
  ('', CONCAT(x'73656d656c000001', UNHEX(LPAD(HEX(UUID_SHORT()), 16, '0'))), '', '');
UPDATE semel_outbox_home SET row_id = LAST_INSERT_ID() WHERE one = 1;
UPDATE semel_outbox_shard SET prev_mark = '0', open_mark = NULL, last_id = 0, batch_no = batch_no + 1,
  version = version + 1, suspect = NULL;
