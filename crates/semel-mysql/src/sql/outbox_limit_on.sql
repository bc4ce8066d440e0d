CREATE TRIGGER semel_outbox_in_limits BEFORE INSERT ON semel_outbox FOR EACH ROW
BEGIN
  DECLARE said VARCHAR(128) CHARACTER SET utf8mb4;
  DECLARE now_us BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6));
  -- Rows without a stream are nobody's.
  IF NEW.stream <> '' THEN
    IF EXISTS (SELECT 1 FROM semel_outbox_limit l WHERE l.stream = '')
      AND NOT EXISTS (SELECT 1 FROM semel_outbox_shard s WHERE s.stream = NEW.stream) THEN
      SIGNAL SQLSTATE 'SM261' SET MESSAGE_TEXT =
        'SEM0261: no relay has registered this stream, and only registered ones are written to here';
    END IF;
    -- While nobody measures, the age counts from the last measure at the latest.
    SET said = (SELECT CASE
      WHEN l.waiting >= l.rows_max
        THEN CONCAT('SEM0260: this stream takes no more events now: ', l.waiting, ' events or more wait, rows_max is ', l.rows_max)
      WHEN now_us - IF(l.measured_us < now_us - 15000000, COALESCE(l.oldest_us, l.measured_us), l.oldest_us) > l.age_max_ms * 1000
        THEN CONCAT('SEM0260: this stream takes no more events now: the oldest waits for longer than age_max_ms = ', l.age_max_ms)
      END FROM semel_outbox_limit l WHERE l.stream = NEW.stream);
    -- What a relay moves was admitted when it was delayed.
    IF said IS NOT NULL AND NOT EXISTS (SELECT 1 FROM semel_outbox_delayed d WHERE d.event_id = NEW.event_id) THEN
      SIGNAL SQLSTATE 'SM260' SET MESSAGE_TEXT = said;
    END IF;
  END IF;
END
