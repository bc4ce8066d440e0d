-- Events, written in the business transaction and never changed. AUTOINCREMENT: without it the id of a deleted last
-- row would be used again, and a cursor would pass it over. From other languages a plain INSERT is enough:
--   slot = the first two bytes (big endian) of SHA-256 of key, or of event_id where there is no key, modulo 4096;
--   headers = JSON [["name","hexadecimal value"], ...] or NULL; created_at = microseconds since 1970 in UTC;
--   id is left out: SQLite gives it, and one below a cursor would never be sent.
CREATE TABLE semel_outbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0),
  stream       TEXT NOT NULL DEFAULT 'default',
  slot         INTEGER NOT NULL CHECK (slot BETWEEN 0 AND 4095),
  event_id     BLOB NOT NULL CHECK (length(event_id) = 16),
  topic        TEXT NOT NULL,
  type         TEXT NOT NULL,
  source       TEXT NOT NULL DEFAULT '/semel',
  key          BLOB,
  content_type TEXT,
  headers      BLOB,
  data         BLOB,
  traceparent  TEXT,
  created_at   INTEGER NOT NULL
) STRICT;
-- The same id twice is refused, or passed over by ON CONFLICT (event_id) DO NOTHING: receivers would take the second for
-- a repetition of the first. Remembered for as long as the row is kept. Ids that grow (UUIDv7) cost little here.
CREATE UNIQUE INDEX semel_outbox_event_id ON semel_outbox (event_id);
-- An id that was left out is -1 here; a -1 that was written fails the table's check.
CREATE TRIGGER semel_outbox_own_id BEFORE INSERT ON semel_outbox WHEN NEW.id IS NOT NULL AND NEW.id <> -1
BEGIN
  SELECT RAISE(ABORT, 'semel_outbox.id is given by SQLite; leave the column out');
END;

-- Events that wait for their time; due is in microseconds since 1970 in UTC. Moved into the outbox by a relay: there they
-- would hold back what is cleaned in order.
CREATE TABLE semel_outbox_delayed (
  n            INTEGER PRIMARY KEY,
  due          INTEGER NOT NULL,
  stream       TEXT NOT NULL DEFAULT 'default',
  slot         INTEGER NOT NULL CHECK (slot BETWEEN 0 AND 4095),
  event_id     BLOB NOT NULL UNIQUE CHECK (length(event_id) = 16),
  topic        TEXT NOT NULL,
  type         TEXT NOT NULL,
  source       TEXT NOT NULL DEFAULT '/semel',
  key          BLOB,
  content_type TEXT,
  headers      BLOB,
  data         BLOB,
  traceparent  TEXT
) STRICT;
CREATE INDEX semel_outbox_delayed_due ON semel_outbox_delayed (stream, due, n);

-- One row per shard: who owns it, and how far it has got. A mark is a row id: SQLite has one writer at a time, so
-- ids are in the order of commits.
CREATE TABLE semel_outbox_shard (
  stream        TEXT NOT NULL,
  shard         INTEGER NOT NULL,
  slot_first    INTEGER NOT NULL,
  slot_last     INTEGER NOT NULL,
  epoch         INTEGER NOT NULL DEFAULT 0,
  nonce         BLOB,
  relay         BLOB, -- who took it last, as in semel_outbox_relay: for sharing, nothing is guarded by it
  owner         TEXT NOT NULL DEFAULT '',
  until         INTEGER NOT NULL DEFAULT 0,
  prev          INTEGER NOT NULL DEFAULT 0,
  open          INTEGER,
  last_id       INTEGER NOT NULL DEFAULT 0,
  batch_no      INTEGER NOT NULL DEFAULT 0,
  batch         BLOB, -- random bits of the batch opened last
  version       INTEGER NOT NULL DEFAULT 0,
  suspect       INTEGER,
  log           TEXT, -- where a log holds the cursor: how far it has got at least, or 'rebind'
  takeovers     INTEGER NOT NULL DEFAULT 0,
  seen_batch_no INTEGER NOT NULL DEFAULT 0,
  seen_last_id  INTEGER NOT NULL DEFAULT 0,
  map           INTEGER NOT NULL DEFAULT 0, -- which ranges of slots and which mark a batch was opened under
  note          TEXT, -- what its owner said last: why it sends nothing
  noted_at      INTEGER,
  PRIMARY KEY (stream, shard)
) STRICT, WITHOUT ROWID;

-- Relays that say that they live, each until then: by it they share the shards.
CREATE TABLE semel_outbox_relay (
  stream TEXT NOT NULL,
  relay  BLOB NOT NULL, -- random bits, drawn when it began
  owner  TEXT NOT NULL,
  until  INTEGER NOT NULL,
  PRIMARY KEY (stream, relay)
) STRICT, WITHOUT ROWID;

-- Streams that are to have another number of shards: every shard is run up to the mark, then the map is replaced.
CREATE TABLE semel_outbox_reshard (
  stream     TEXT PRIMARY KEY,
  shards     INTEGER NOT NULL,
  mark       INTEGER NOT NULL,
  hold_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Rows that could not be sent, copied here in the transaction that moves the cursor past them.
CREATE TABLE semel_outbox_exception (
  id           INTEGER PRIMARY KEY,
  shard        INTEGER NOT NULL,
  kind         TEXT NOT NULL CHECK (kind IN ('parked', 'behind', 'skipped')),
  attempts     INTEGER NOT NULL,
  reason       TEXT NOT NULL,
  since        INTEGER NOT NULL,
  stream       TEXT NOT NULL,
  slot         INTEGER NOT NULL,
  event_id     BLOB NOT NULL,
  topic        TEXT NOT NULL,
  type         TEXT NOT NULL,
  source       TEXT NOT NULL,
  key          BLOB,
  content_type TEXT,
  headers      BLOB,
  data         BLOB,
  traceparent  TEXT,
  created_at   INTEGER NOT NULL,
  -- The batch in which it was read last; 0 where it is sent again by a replay.
  batch_no     INTEGER NOT NULL DEFAULT 0,
  -- What a person asked of it, for its shard's owner to carry out; how often owners took it for that.
  asked        TEXT CHECK (asked IN ('retry', 'drop', 'release')),
  taken        INTEGER NOT NULL DEFAULT 0,
  edits        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX semel_outbox_exception_stream ON semel_outbox_exception (stream, shard, id);
CREATE INDEX semel_outbox_exception_list ON semel_outbox_exception (stream, shard, key, id);
CREATE INDEX semel_outbox_exception_asked ON semel_outbox_exception (stream, shard, id) WHERE asked IS NOT NULL;

-- Who changed what at the operator's desk, and why; the event as it was before an edit or a drop, as JSON. Kept until
-- somebody deletes it.
CREATE TABLE semel_outbox_desk_log (
  entry    INTEGER PRIMARY KEY AUTOINCREMENT,
  at       INTEGER NOT NULL,
  "by"     TEXT NOT NULL,
  why      TEXT NOT NULL,
  action   TEXT NOT NULL,
  stream   TEXT NOT NULL,
  "row"    INTEGER NOT NULL,
  event_id BLOB NOT NULL,
  before   TEXT
) STRICT;
CREATE INDEX semel_outbox_desk_log_row ON semel_outbox_desk_log ("row");
