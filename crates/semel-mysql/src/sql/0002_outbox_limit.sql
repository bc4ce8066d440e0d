
-- How much of a stream may wait before more is refused at enqueue; where this is empty, nothing checks. Set by relays and by
-- Mysql::limit_stream, which make the triggers, too. A row with an empty stream: streams that nobody has registered are
-- refused. Times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS semel_outbox_limit (
  stream      VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  rows_max    BIGINT,
  age_max_ms  BIGINT,
  -- What waited when a relay counted it last.
  waiting     BIGINT NOT NULL DEFAULT 0,
  oldest_us   BIGINT,
  measured_us BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
