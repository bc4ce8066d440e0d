-- Keys: one row per key; see semel_core::claim. What a column may hold is checked by whoever writes it, in the functions and
-- in the Rust store: the server reads and plans a CHECK anew for every statement, which cost more than an index.
CREATE TABLE semel.key (
  scope           bytea NOT NULL, -- 1 to 255 bytes, as is the id
  id              bytea NOT NULL,
  state           text NOT NULL,  -- absent, claimed, unknown, done, tombstone
  fingerprint     bytea,
  token           bigint,       -- fencing token, drawn from semel.token
  nonce           bytea,        -- of the claim that holds or held it
  hold            boolean,      -- when its owner is lost it becomes unknown
  extended        boolean,
  attempt         integer,
  until           timestamptz,  -- claimed: end of the lease; done: end of the retention
  outcome_code    text,         -- s succeeded, r refused, f forgotten
  outcome         bytea,
  digest          bytea,        -- of the outcome, once only the tombstone is left
  tombstone_until timestamptz,
  withdrawn       bytea,        -- nonces that must not be granted, 16 bytes each
  withdrawn_until timestamptz,
  due_at          timestamptz,  -- when the sweep has something to do with it
  waited          boolean,      -- somebody wants to be told when the run ends
  PRIMARY KEY (scope, id)
) WITH (fillfactor = 70);
CREATE INDEX key_due ON semel.key (due_at) WHERE due_at IS NOT NULL;
-- What is unknown: no other row is in it, so it costs their writers nothing.
CREATE INDEX key_open ON semel.key (scope, id) WHERE due_at IS NULL;

-- One sequence for all keys, so that a token survives the purge of its key. CACHE 1: a session must not keep
-- numbers for later.
CREATE SEQUENCE semel.token CACHE 1;

-- Microseconds since 1970, the form in which times leave the database.
CREATE FUNCTION semel.us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
  AS $$ SELECT (extract(epoch FROM at) * 1000000::numeric)::bigint $$;

-- A new row's token is drawn before the row can be locked. If that was so long ago that a record of the same key may
-- have come and gone since (a sweep leaves ended records alone for a minute), the statement starts again.
CREATE FUNCTION semel.token_too_old() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a claim waited too long after its token was drawn' USING ERRCODE = '40001';
END $$;

-- A time from now. Functions of this form name what they use once, when they are made, and become part of the statements
-- that call them: they are pinned without a `SET search_path`, which each call would pay for.
CREATE FUNCTION semel.in_ms(ms bigint) RETURNS timestamptz LANGUAGE sql VOLATILE
  RETURN clock_timestamp() + ms::float8 * interval '1 millisecond';

-- When a claim is due: a held one at the end of its lease, one that may be run again 31 days (RERUN_KEPT_MS) and a minute of
-- grace later.
CREATE FUNCTION semel.claim_due(hold boolean, until timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE
  RETURN until + CASE WHEN hold THEN interval '0' ELSE interval '744 hours 1 minute' END;

-- Whether a token that was drawn when `until` was this far away is too old to be that of a new row.
CREATE FUNCTION semel.drawn_long_ago(until timestamptz, ms bigint) RETURNS boolean LANGUAGE sql VOLATILE
  RETURN clock_timestamp() + ms::float8 * interval '1 millisecond' - until > interval '30 seconds';

-- SHA-256 over parts, each after its length as 8 bytes: what semel_core::key::derive computes. Null is no part.
CREATE FUNCTION semel.derive_id(VARIADIC parts bytea[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT sha256(coalesce(string_agg(int8send(octet_length(p)::bigint) || p, ''::bytea ORDER BY n), ''::bytea))
    FROM unnest($1) WITH ORDINALITY AS part (p, n) $$;
