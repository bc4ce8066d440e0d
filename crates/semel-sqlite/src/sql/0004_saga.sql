-- Definitions: stored once per hash; running sagas are pinned to theirs.
CREATE TABLE semel_saga_definition (
  hash BLOB PRIMARY KEY CHECK (length(hash) = 32),
  name TEXT NOT NULL,
  body TEXT NOT NULL, -- JSON; the hash is over these bytes
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Sagas. Times are microseconds since 1970. A row with tombstone_until is pruned: only its end is known.
CREATE TABLE semel_saga (
  id TEXT PRIMARY KEY,
  definition BLOB NOT NULL,
  fingerprint BLOB NOT NULL, -- of the input
  input BLOB NOT NULL,
  status TEXT NOT NULL
    CHECK (status IN ('running', 'waiting', 'compensating', 'completed', 'compensated', 'stuck', 'abandoned')),
  why TEXT, -- what a person must look at
  state TEXT NOT NULL, -- JSON
  version INTEGER NOT NULL, -- raised by every write
  epoch INTEGER NOT NULL,
  owner BLOB CHECK (length(owner) = 16),
  lease_until INTEGER,
  due_at INTEGER, -- NULL: nothing happens by itself
  accepted_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  ended_at INTEGER,
  tombstone_until INTEGER
) STRICT;
CREATE INDEX semel_saga_due ON semel_saga (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX semel_saga_status ON semel_saga (status, id);
CREATE INDEX semel_saga_ended ON semel_saga (ended_at) WHERE ended_at IS NOT NULL AND tombstone_until IS NULL;
CREATE INDEX semel_saga_tombstone ON semel_saga (tombstone_until) WHERE tombstone_until IS NOT NULL;

-- What happened, written in the commit of the transition it tells of.
CREATE TABLE semel_saga_log (
  saga TEXT NOT NULL,
  version INTEGER NOT NULL,
  n INTEGER NOT NULL,
  at INTEGER NOT NULL,
  step TEXT,
  op TEXT,
  event TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (saga, version, n)
) STRICT, WITHOUT ROWID;

-- Requests of operators and submitters, for the saga's owner.
CREATE TABLE semel_saga_request (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  saga TEXT NOT NULL,
  kind TEXT NOT NULL,
  by_whom TEXT NOT NULL,
  why TEXT NOT NULL,
  asked_at INTEGER NOT NULL
) STRICT;
CREATE INDEX semel_saga_request_saga ON semel_saga_request (saga, n);

-- The participants' side: one row per operation of a step, in the transaction of its effect.
-- A compensation that finds no action writes the action's row (origin 'compensation'), which turns the late action away.
CREATE TABLE semel_barrier (
  saga TEXT NOT NULL,
  step TEXT NOT NULL,
  op TEXT NOT NULL CHECK (op IN ('action', 'compensation')),
  origin TEXT NOT NULL CHECK (origin IN ('action', 'compensation')),
  epoch INTEGER NOT NULL,
  outcome TEXT, -- 's' or 'r'; NULL only inside the transaction that runs it
  response BLOB,
  not_after INTEGER, -- the latest moment at which its call may still come
  called_at INTEGER NOT NULL,
  PRIMARY KEY (saga, step, op)
) STRICT, WITHOUT ROWID;
