-- $1 scopes, $2 ids, $3 tokens, $4 nonces, sorted by key, no key twice; $5 lock_timeout.
-- A held key is unknown at once; one that may be run again is free for the next claimant.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true)),
input AS MATERIALIZED (
  SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[])
    WITH ORDINALITY AS i (scope, id, token, nonce, n)
),
seen AS MATERIALIZED (
  SELECT i.n, k.* FROM input AS i JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
),
won AS (
  UPDATE semel.key AS k SET state = CASE WHEN k.hold THEN 'unknown' ELSE 'claimed' END,
    until = CASE WHEN NOT k.hold THEN least(k.until, clock_timestamp()) END,
    extended = CASE WHEN NOT k.hold THEN true END, hold = CASE WHEN NOT k.hold THEN false END, due_at = NULL
  FROM (SELECT * FROM input ORDER BY scope, id) AS i
  WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token AND k.nonce = i.nonce AND k.state = 'claimed'
  RETURNING i.n, k.token
)
SELECT i.n, w.token AS won_token, NULL::bigint AS won_until, NULL::integer AS won_attempt,
  semel.us(clock_timestamp()) AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, semel.us(k.until) AS until, k.outcome_code,
  k.outcome, k.digest, semel.us(k.tombstone_until) AS tombstone_until, k.withdrawn,
  semel.us(k.withdrawn_until) AS withdrawn_until
FROM input AS i LEFT JOIN won AS w ON w.n = i.n LEFT JOIN seen AS k ON k.n = i.n
