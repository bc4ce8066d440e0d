-- $1 scopes, $2 ids, $3 fingerprints, $4 nonces, $5 holds, $6 lease_ms, sorted by key, no key twice; $7 lock_timeout.
-- What cannot be granted (a replay, a running key) is answered from what is seen and locks nothing.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $7, true)),
input AS MATERIALIZED (
  SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::boolean[], $6::bigint[])
    WITH ORDINALITY AS i (scope, id, fingerprint, nonce, hold, lease_ms, n)
),
seen AS MATERIALIZED (
  SELECT i.n, k.* FROM input AS i JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
),
may AS (
  SELECT i.* FROM input AS i LEFT JOIN seen AS k ON k.n = i.n
  WHERE k.n IS NULL
    OR (NOT coalesce(k.withdrawn_until > clock_timestamp() AND position(i.nonce IN k.withdrawn) > 0, false)
      AND (k.state = 'absent'
        OR (k.state = 'claimed' AND NOT k.hold AND k.until <= clock_timestamp() AND k.fingerprint = i.fingerprint)
        OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp())))
  ORDER BY i.scope, i.id
),
won AS (
  INSERT INTO semel.key AS k
    (scope, id, state, fingerprint, token, nonce, hold, extended, attempt, lease_ms, until, due_at)
  SELECT scope, id, 'claimed', fingerprint, nextval('semel.token'), nonce, hold, false, 1, lease_ms,
    clock_timestamp() + lease_ms * interval '1 millisecond',
    CASE WHEN hold THEN clock_timestamp() + lease_ms * interval '1 millisecond' END
  FROM may
  -- Token and deadline are made here, where the row's lock is held, not in `excluded`, which is older than the wait.
  ON CONFLICT (scope, id) DO UPDATE SET state = 'claimed', fingerprint = excluded.fingerprint,
    token = nextval('semel.token'), nonce = excluded.nonce, hold = excluded.hold, extended = false,
    attempt = CASE WHEN k.state = 'claimed' THEN k.attempt + 1 ELSE 1 END, lease_ms = excluded.lease_ms,
    until = clock_timestamp() + excluded.lease_ms * interval '1 millisecond',
    due_at = CASE WHEN excluded.hold THEN clock_timestamp() + excluded.lease_ms * interval '1 millisecond' END,
    outcome_code = NULL, outcome = NULL, digest = NULL, tombstone_until = NULL
  WHERE NOT coalesce(k.withdrawn_until > clock_timestamp() AND position(excluded.nonce IN k.withdrawn) > 0, false)
    AND (k.state = 'absent'
      OR (k.state = 'claimed' AND NOT k.hold AND k.until <= clock_timestamp()
        AND k.fingerprint = excluded.fingerprint)
      OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp()))
  RETURNING k.scope, k.id, k.token, k.until, k.attempt,
    CASE WHEN clock_timestamp() - statement_timestamp() > interval '30 seconds' THEN semel.token_too_old() END
)
SELECT i.n, w.token AS won_token, semel.us(w.until) AS won_until, w.attempt AS won_attempt, semel.us(clock_timestamp()) AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, semel.us(k.until) AS until, k.outcome_code,
  k.outcome, k.digest, semel.us(k.tombstone_until) AS tombstone_until, k.withdrawn,
  semel.us(k.withdrawn_until) AS withdrawn_until
FROM input AS i LEFT JOIN won AS w ON w.scope = i.scope AND w.id = i.id LEFT JOIN seen AS k ON k.n = i.n
