-- Keys: one row per key; see semel_core::claim.
CREATE TABLE semel.key (
  scope           bytea NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 255),
  id              bytea NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 255),
  state           text NOT NULL CHECK (state IN ('absent', 'claimed', 'unknown', 'done', 'tombstone')),
  fingerprint     bytea,
  token           bigint,       -- fencing token, drawn from semel.token
  nonce           bytea,        -- of the claim that holds or held it
  hold            boolean,      -- when its owner is lost it becomes unknown
  extended        boolean,
  attempt         integer,
  lease_ms        bigint,       -- as asked; the deadline is made from it when the row's lock is held
  until           timestamptz,  -- claimed: end of the lease; done: end of the retention
  outcome_code    text,         -- s succeeded, r refused, f forgotten
  outcome         bytea,
  digest          bytea,
  tombstone_until timestamptz,
  withdrawn       bytea,        -- nonces that must not be granted, 16 bytes each
  withdrawn_until timestamptz,
  due_at          timestamptz,  -- when the sweep has something to do with it
  PRIMARY KEY (scope, id)
) WITH (fillfactor = 70);
CREATE INDEX key_due ON semel.key (due_at) WHERE due_at IS NOT NULL;

-- One sequence for all keys, so that a token survives the purge of its key. CACHE 1: a session must not keep
-- numbers for later.
CREATE SEQUENCE semel.token CACHE 1;

-- Microseconds since 1970, the form in which times leave the database.
CREATE FUNCTION semel.us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
  AS $$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$;

-- A new row's token is drawn before the row can be locked. If that was so long ago that a record of the same key may
-- have come and gone since (a sweep leaves ended records alone for a minute), the statement starts again.
CREATE FUNCTION semel.token_too_old() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a claim waited too long after its token was drawn' USING ERRCODE = '40001';
END $$;
