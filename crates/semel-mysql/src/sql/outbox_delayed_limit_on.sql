CREATE TRIGGER semel_outbox_delayed_in_limits BEFORE INSERT ON semel_outbox_delayed FOR EACH ROW
BEGIN
  IF EXISTS (SELECT 1 FROM semel_outbox_limit l WHERE l.stream = '')
    AND NOT EXISTS (SELECT 1 FROM semel_outbox_shard s WHERE s.stream = NEW.stream) THEN
    SIGNAL SQLSTATE 'SM261' SET MESSAGE_TEXT =
      'SEM0261: no relay has registered this stream, and only registered ones are written to here';
  END IF;
END
