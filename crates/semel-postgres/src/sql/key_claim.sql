-- $1 scopes, $2 ids, $3 fingerprints, $4 nonces, $5 holds, $6 lease_ms, sorted by key, no key twice; $7 lock_timeout.
-- What cannot be granted (a replay, a running key) is answered from what is seen and locks nothing.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $7, true)),
seen AS MATERIALIZED (
  SELECT i.n, i.scope, i.id, i.fingerprint AS asked, i.nonce AS fresh, i.hold AS held,
    statement_timestamp() + i.lease_ms::float8 * interval '1 millisecond' AS ends,
    k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until, k.outcome_code, k.outcome, k.digest,
    k.tombstone_until, k.withdrawn, k.withdrawn_until
  FROM patience, unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::boolean[], $6::bigint[])
    WITH ORDINALITY AS i (scope, id, fingerprint, nonce, hold, lease_ms, n)
  LEFT JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
),
won AS (
  INSERT INTO semel.key AS k (scope, id, state, fingerprint, token, nonce, hold, extended, attempt, until, due_at)
  SELECT scope, id, 'claimed', asked, nextval('semel.token'::regclass), fresh, held, false, 1, ends, semel.claim_due(held, ends)
  FROM seen AS s
  WHERE s.state IS NULL
    OR (NOT coalesce(s.withdrawn_until > clock_timestamp() AND position(s.fresh IN s.withdrawn) > 0, false)
      AND (s.state = 'absent'
        OR (s.state = 'claimed' AND NOT s.hold AND s.until <= clock_timestamp() AND s.fingerprint = s.asked)
        OR (s.state IN ('done', 'tombstone') AND s.tombstone_until <= clock_timestamp())))
  -- Token and deadline are made here, where the row's lock is held, not in `excluded`, which is older than the wait.
  ON CONFLICT (scope, id) DO UPDATE SET state = 'claimed', fingerprint = excluded.fingerprint,
    token = nextval('semel.token'::regclass), nonce = excluded.nonce, hold = excluded.hold, extended = false,
    attempt = CASE WHEN k.state = 'claimed' THEN k.attempt + 1 ELSE 1 END,
    until = clock_timestamp() + (excluded.until - statement_timestamp()),
    due_at = semel.claim_due(excluded.hold, clock_timestamp() + (excluded.until - statement_timestamp())),
    outcome_code = NULL, outcome = NULL, digest = NULL, tombstone_until = NULL,
    waited = CASE WHEN k.state = 'claimed' THEN k.waited END
  WHERE NOT coalesce(k.withdrawn_until > clock_timestamp() AND position(excluded.nonce IN k.withdrawn) > 0, false)
    AND (k.state = 'absent'
      OR (k.state = 'claimed' AND NOT k.hold AND k.until <= clock_timestamp() AND k.fingerprint = excluded.fingerprint)
      OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp()))
  RETURNING k.scope, k.id, k.token, k.until, k.attempt,
    CASE WHEN clock_timestamp() - statement_timestamp() > interval '30 seconds' THEN semel.token_too_old() END
)
-- What was seen is as old as the statement, however long it waited.
SELECT s.n, w.token AS won_token, w.until AS won_until, w.attempt AS won_attempt,
  CASE WHEN w.token IS NULL THEN statement_timestamp() ELSE clock_timestamp() END AS now,
  s.state, s.fingerprint, s.token, s.nonce, s.hold, s.extended, s.attempt, s.until, s.outcome_code, s.outcome,
  s.digest, s.tombstone_until, s.withdrawn, s.withdrawn_until
FROM seen AS s LEFT JOIN won AS w ON w.scope = s.scope AND w.id = s.id
