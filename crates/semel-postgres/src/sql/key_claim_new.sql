-- $1 scopes, $2 ids, $3 fingerprints, $4 nonces, $5 holds, $6 lease_ms, sorted by key, no key twice; $7 lock_timeout.
-- Grants keys of which nothing is known, and shows no row for the others: how they stand is what key_claim.sql says.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $7, true))
INSERT INTO semel.key AS k (scope, id, state, fingerprint, token, nonce, hold, extended, attempt, until, due_at)
SELECT i.scope, i.id, 'claimed', i.fingerprint, nextval('semel.token'::regclass), i.nonce, i.hold, false, 1,
  statement_timestamp() + i.lease_ms::float8 * interval '1 millisecond',
  semel.claim_due(i.hold, statement_timestamp() + i.lease_ms::float8 * interval '1 millisecond')
FROM patience, unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::boolean[], $6::bigint[])
  AS i (scope, id, fingerprint, nonce, hold, lease_ms)
ON CONFLICT (scope, id) DO NOTHING
RETURNING k.scope, k.id, k.token AS won_token, k.until AS won_until, clock_timestamp() AS now,
  CASE WHEN clock_timestamp() - statement_timestamp() > interval '30 seconds' THEN semel.token_too_old() END
