-- $1 scopes, $2 ids, $3 tokens, $4 nonces, $5 lease_ms, sorted by key, no key twice; $6 lock_timeout.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $6, true)),
input AS MATERIALIZED (
  SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[])
    WITH ORDINALITY AS i (scope, id, token, nonce, lease_ms, n)
),
seen AS MATERIALIZED (
  SELECT i.n, k.* FROM input AS i JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
),
won AS (
  UPDATE semel.key AS k SET state = 'claimed', extended = true, lease_ms = i.lease_ms,
    until = greatest(k.until, clock_timestamp() + i.lease_ms * interval '1 millisecond'),
    due_at = CASE WHEN k.hold THEN greatest(k.until, clock_timestamp() + i.lease_ms * interval '1 millisecond') END
  FROM (SELECT * FROM input ORDER BY scope, id) AS i
  WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token AND k.nonce = i.nonce
    AND k.state IN ('claimed', 'unknown')
  RETURNING i.n, k.token, k.until, k.attempt
)
SELECT i.n, w.token AS won_token, semel.us(w.until) AS won_until, w.attempt AS won_attempt, semel.us(clock_timestamp()) AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, semel.us(k.until) AS until, k.outcome_code,
  k.outcome, k.digest, semel.us(k.tombstone_until) AS tombstone_until, k.withdrawn,
  semel.us(k.withdrawn_until) AS withdrawn_until
FROM input AS i LEFT JOIN won AS w ON w.n = i.n LEFT JOIN seen AS k ON k.n = i.n
