-- Keys: one row per key; see semel_core::claim. Times are microseconds since 1970.
CREATE TABLE semel_key (
  scope   BLOB NOT NULL,
  id      BLOB NOT NULL,
  state   TEXT NOT NULL,            -- absent, claimed, unknown, done or tombstone
  due_at  INTEGER,                  -- when the sweep has something to do with it
  record  BLOB NOT NULL,            -- all else, packed: see store/key_record.rs
  outcome BLOB,
  PRIMARY KEY (scope, id)
) STRICT;
CREATE INDEX semel_key_due ON semel_key (due_at) WHERE due_at IS NOT NULL;

-- One counter for all keys. It never goes back, so a token survives the purge of its key.
CREATE TABLE semel_token (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  token INTEGER NOT NULL
) STRICT;
INSERT INTO semel_token (one, token) VALUES (1, 0);
