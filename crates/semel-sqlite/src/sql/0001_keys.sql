-- Keys: one row per key; see semel_core::claim. Times are microseconds since 1970.
CREATE TABLE semel_key (
  scope           BLOB NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
  id              BLOB NOT NULL CHECK (length(id) BETWEEN 1 AND 255),
  state           TEXT NOT NULL CHECK (state IN ('absent', 'claimed', 'unknown', 'done', 'tombstone')),
  fingerprint     BLOB,
  token           INTEGER,          -- fencing token, drawn from semel_token
  nonce           BLOB,             -- of the claim that holds or held it
  hold            INTEGER,          -- 1: when its owner is lost it becomes unknown
  extended        INTEGER,
  attempt         INTEGER,
  until           INTEGER,          -- claimed: end of the lease; done: end of the retention
  outcome_code    TEXT,             -- s succeeded, r refused, f forgotten
  outcome         BLOB,
  digest          BLOB,
  tombstone_until INTEGER,
  withdrawn       BLOB,             -- nonces that must not be granted, 16 bytes each
  withdrawn_until INTEGER,
  due_at          INTEGER,          -- when the sweep has something to do with it
  PRIMARY KEY (scope, id)
) STRICT;
CREATE INDEX semel_key_due ON semel_key (due_at) WHERE due_at IS NOT NULL;

-- One counter for all keys. It never goes back, so a token survives the purge of its key.
CREATE TABLE semel_token (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  token INTEGER NOT NULL
) STRICT;
INSERT INTO semel_token (one, token) VALUES (1, 0);
