-- $1 scope, $2 id, $3 fingerprint, $4 nonce, $5 retention_ms, $6 tombstone_ms.
-- Inside the user's transaction: marks a key of which nothing is known, or shows no row: then key_once.sql says how it
-- stands. A concurrent duplicate waits here for the first one's end.
INSERT INTO semel.key AS k (scope, id, state, fingerprint, token, nonce, attempt, until, outcome_code, outcome,
  tombstone_until, due_at)
VALUES ($1, $2, 'done', $3, pg_catalog.nextval('semel.token'::pg_catalog.regclass), $4, 1, semel.in_ms($5), 'f', '',
  semel.in_ms($5 OPERATOR(pg_catalog.+) $6), semel.in_ms($5))
ON CONFLICT (scope, id) DO NOTHING
RETURNING k.token, CASE WHEN semel.drawn_long_ago(k.until, $5) THEN semel.token_too_old() END
