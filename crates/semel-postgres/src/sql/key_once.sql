-- $1 scope, $2 id, $3 fingerprint, $4 nonce, $5 retention_ms, $6 tombstone_ms.
-- Inside the user's transaction: a concurrent duplicate waits here for its end. The rules are those of key_claim.sql.
WITH seen AS MATERIALIZED (SELECT k.* FROM semel.key AS k WHERE k.scope = $1 AND k.id = $2),
won AS (
  INSERT INTO semel.key AS k (scope, id, state, fingerprint, token, nonce, attempt, until, outcome_code, outcome,
    tombstone_until, due_at)
  SELECT $1, $2, 'done', $3, nextval('semel.token'::regclass), $4, 1, clock_timestamp() + $5::float8 * interval '1 millisecond', 'f', '',
    clock_timestamp() + ($5 + $6)::float8 * interval '1 millisecond', clock_timestamp() + $5::float8 * interval '1 millisecond'
  WHERE NOT EXISTS (SELECT FROM seen AS k WHERE NOT (k.state = 'absent'
    OR (k.state = 'claimed' AND NOT k.hold AND k.until <= clock_timestamp() AND k.fingerprint = $3)
    OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp())))
  ON CONFLICT (scope, id) DO UPDATE SET state = 'done', fingerprint = excluded.fingerprint,
    token = nextval('semel.token'::regclass), nonce = excluded.nonce,
    attempt = CASE WHEN k.state = 'claimed' THEN k.attempt + 1 ELSE 1 END,
    until = clock_timestamp() + $5::float8 * interval '1 millisecond', outcome_code = 'f', outcome = '', digest = NULL,
    tombstone_until = clock_timestamp() + ($5 + $6)::float8 * interval '1 millisecond',
    due_at = clock_timestamp() + $5::float8 * interval '1 millisecond'
  WHERE k.state = 'absent'
    OR (k.state = 'claimed' AND NOT k.hold AND k.until <= clock_timestamp() AND k.fingerprint = excluded.fingerprint)
    OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp())
  RETURNING k.token, k.until, k.attempt,
    CASE WHEN clock_timestamp() - statement_timestamp() > interval '30 seconds' THEN semel.token_too_old() END
)
-- What was seen is as old as the statement, however long it waited.
SELECT w.token AS won_token, w.until AS won_until, w.attempt AS won_attempt,
  CASE WHEN w.token IS NULL THEN statement_timestamp() ELSE clock_timestamp() END AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until, k.outcome_code, k.outcome,
  k.digest, k.tombstone_until, k.withdrawn, k.withdrawn_until
FROM (SELECT 1) AS one LEFT JOIN won AS w ON true LEFT JOIN seen AS k ON true
