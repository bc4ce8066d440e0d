
-- How much of a stream may wait before more is refused at enqueue; where this is empty, nothing checks. Set by relays and by
-- Sqlite::limit_stream, which make the triggers, too. A row with an empty stream: streams that nobody has registered are
-- refused. Times are microseconds since 1970.
CREATE TABLE semel_outbox_limit (
  stream      TEXT NOT NULL PRIMARY KEY,
  rows_max    INTEGER,
  age_max_ms  INTEGER,
  -- What waited when it was counted last, by a relay each second or by a writer.
  waiting     INTEGER NOT NULL DEFAULT 0,
  oldest_us   INTEGER,
  counted_to  INTEGER NOT NULL DEFAULT 0,
  measured_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
