CREATE TRIGGER IF NOT EXISTS semel_outbox_in_limits BEFORE INSERT ON semel_outbox
WHEN EXISTS (SELECT 1 FROM semel_outbox_limit WHERE stream IN ('', NEW.stream))
BEGIN
  SELECT RAISE(ABORT, 'SEM0261: no relay has registered this stream, and only registered ones are written to here')
    WHERE EXISTS (SELECT 1 FROM semel_outbox_limit WHERE stream = '')
    AND NOT EXISTS (SELECT 1 FROM semel_outbox_shard WHERE stream = NEW.stream);
  -- Nobody measures: what was written since is counted here.
  UPDATE semel_outbox_limit SET
    waiting = waiting + (SELECT count(*) FROM semel_outbox o WHERE o.id > counted_to AND o.stream = NEW.stream),
    oldest_us = coalesce(oldest_us,
      (SELECT min(o.created_at) FROM semel_outbox o WHERE o.id > counted_to AND o.stream = NEW.stream)),
    counted_to = coalesce((SELECT max(o.id) FROM semel_outbox o), counted_to),
    measured_us = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
    WHERE stream = NEW.stream
    AND measured_us < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 - 3000000;
  -- What a relay moves was admitted when it was delayed.
  SELECT RAISE(ABORT, 'SEM0260: this stream takes no more events now: see semel_outbox_limit')
    FROM semel_outbox_limit l WHERE l.stream = NEW.stream
    AND (l.waiting >= l.rows_max
      OR CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 - l.oldest_us > l.age_max_ms * 1000)
    AND NOT EXISTS (SELECT 1 FROM semel_outbox_delayed d WHERE d.event_id = NEW.event_id);
END;
CREATE TRIGGER IF NOT EXISTS semel_outbox_delayed_in_limits BEFORE INSERT ON semel_outbox_delayed
WHEN EXISTS (SELECT 1 FROM semel_outbox_limit WHERE stream = '')
BEGIN
  SELECT RAISE(ABORT, 'SEM0261: no relay has registered this stream, and only registered ones are written to here')
    WHERE NOT EXISTS (SELECT 1 FROM semel_outbox_shard WHERE stream = NEW.stream);
END
