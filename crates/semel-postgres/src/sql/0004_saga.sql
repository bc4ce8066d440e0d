-- Definitions: stored once per hash; running sagas are pinned to theirs.
CREATE TABLE semel.saga_definition (
  hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
  name       text NOT NULL,
  body       text NOT NULL, -- JSON; the hash is over these bytes
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Sagas. A row with tombstone_until is pruned: only its end is known. What each write of an owner changes is in no
-- index, so that new versions stay on their page: its due_at moves, claim_at mostly stands at the end of the lease.
CREATE TABLE semel.saga (
  id              text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 255),
  definition      bytea NOT NULL,
  fingerprint     bytea NOT NULL, -- of the input
  input           bytea NOT NULL,
  status          text NOT NULL
    CHECK (status IN ('running', 'waiting', 'compensating', 'completed', 'compensated', 'stuck', 'abandoned')),
  why             text, -- what a person must look at
  state           text NOT NULL, -- JSON
  version         bigint NOT NULL, -- raised by every write
  epoch           bigint NOT NULL,
  owner           bytea CHECK (octet_length(owner) = 16),
  lease_until     timestamptz,
  due_at          timestamptz, -- null: nothing happens by itself
  claim_at        timestamptz -- when somebody else may take it
    GENERATED ALWAYS AS (CASE WHEN due_at IS NOT NULL THEN greatest(due_at, lease_until) END) STORED,
  accepted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at        timestamptz,
  tombstone_until timestamptz
) WITH (fillfactor = 60);
CREATE INDEX saga_claim_at ON semel.saga (claim_at) WHERE claim_at IS NOT NULL;
CREATE INDEX saga_status ON semel.saga (status, id) WHERE tombstone_until IS NULL;
CREATE INDEX saga_ended ON semel.saga (ended_at) WHERE ended_at IS NOT NULL AND tombstone_until IS NULL;
CREATE INDEX saga_tombstone ON semel.saga (tombstone_until) WHERE tombstone_until IS NOT NULL;

-- What happened, written in the commit of the transition it tells of.
CREATE TABLE semel.saga_log (
  saga    text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  n       integer NOT NULL,
  at      timestamptz NOT NULL,
  step    text,
  op      text,
  event   text NOT NULL,
  text    text NOT NULL,
  PRIMARY KEY (saga, version, n)
);

-- Requests of operators and submitters, for the saga's owner. Written under the lock of the saga's row, so that the
-- numbers of one saga's requests commit in order.
CREATE TABLE semel.saga_request (
  n        bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
  saga     text COLLATE "C" NOT NULL,
  kind     text NOT NULL CONSTRAINT kind_is_cancel_retry_or_abandon CHECK (kind IN ('cancel', 'retry', 'abandon')),
  by_whom  text NOT NULL CONSTRAINT by_whom_is_1_to_1024_bytes CHECK (octet_length(by_whom) BETWEEN 1 AND 1024),
  why      text NOT NULL CONSTRAINT why_is_at_most_1024_bytes CHECK (octet_length(why) <= 1024),
  asked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX saga_request_saga ON semel.saga_request (saga, n);

-- A saga and its open requests, of one snapshot.
CREATE VIEW semel.saga_record AS
SELECT s.id, s.definition, s.input, s.state, s.status, s.version, s.epoch, s.owner, semel.us(s.due_at) AS due_us,
  semel.us(s.accepted_at) AS accepted_us, s.tombstone_until IS NOT NULL AS pruned,
  r.ns AS request_ns, r.kinds AS request_kinds, r.bys AS request_bys, r.whys AS request_whys
FROM semel.saga AS s LEFT JOIN LATERAL (
  SELECT array_agg(q.n ORDER BY q.n) AS ns, array_agg(q.kind ORDER BY q.n) AS kinds,
    array_agg(q.by_whom ORDER BY q.n) AS bys, array_agg(q.why ORDER BY q.n) AS whys
  FROM semel.saga_request AS q WHERE q.saga = s.id
) AS r ON true;
