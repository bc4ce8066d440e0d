-- Marks: message ids that a consumer has handled.
CREATE TABLE semel_inbox (
  scope BLOB NOT NULL,
  id BLOB NOT NULL,
  seen_at INTEGER NOT NULL, -- microseconds since 1970
  keep_until INTEGER NOT NULL,
  PRIMARY KEY (scope, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_inbox_keep_until ON semel_inbox (keep_until);

-- Positions: up to where a partition has been read. A row is never deleted, so that its epoch only grows.
CREATE TABLE semel_position (
  consumer TEXT NOT NULL,
  topic_id BLOB NOT NULL CHECK (length(topic_id) = 16),
  part INTEGER NOT NULL,
  topic TEXT NOT NULL, -- for people
  next_offset INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  owner BLOB NOT NULL CHECK (length(owner) = 16),
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (consumer, topic_id, part)
) STRICT, WITHOUT ROWID;

-- Ordering keys with parked messages: later messages of such a key are parked too.
CREATE TABLE semel_parked_key (
  scope BLOB NOT NULL,
  key BLOB NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- Parked messages: full copies, in the order they were parked.
CREATE TABLE semel_parked (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  scope BLOB NOT NULL,
  id BLOB NOT NULL,
  key BLOB,
  topic TEXT NOT NULL,
  part INTEGER NOT NULL,
  at_offset INTEGER NOT NULL,
  headers BLOB NOT NULL, -- JSON: [["name", "hex" or null], ...]
  data BLOB,
  reason TEXT NOT NULL,
  sent_at INTEGER NOT NULL,
  parked_at INTEGER NOT NULL,
  UNIQUE (scope, id)
) STRICT;
CREATE INDEX semel_parked_by_key ON semel_parked (scope, key, n);
