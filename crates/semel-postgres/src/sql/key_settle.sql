-- $1 scopes, $2 ids, $3 tokens, $4 whether it happened, $5 outcome codes, $6 outcomes, $7 digests, $8 retention_ms,
-- $9 tombstone_ms, sorted by key, no key twice; $10 lock_timeout, $11 how long a nonce stays withdrawn and $12 how long
-- after that the row stays (both in ms), $13 nonces remembered.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $10, true)),
input AS MATERIALIZED (
  SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::boolean[], $5::text[], $6::bytea[],
    $7::bytea[], $8::bigint[], $9::bigint[])
    WITH ORDINALITY AS i (scope, id, token, happened, outcome_code, outcome, digest, retention_ms, tombstone_ms, n)
),
seen AS MATERIALIZED (
  SELECT i.n, k.* FROM input AS i JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
),
won AS (
  UPDATE semel.key AS k SET state = CASE WHEN i.happened THEN 'done' ELSE 'absent' END,
    fingerprint = CASE WHEN i.happened THEN k.fingerprint END,
    outcome_code = i.outcome_code, outcome = i.outcome, digest = i.digest,
    until = CASE WHEN i.happened THEN clock_timestamp() + i.retention_ms * interval '1 millisecond' END,
    tombstone_until = CASE WHEN i.happened
      THEN clock_timestamp() + (i.retention_ms + i.tombstone_ms) * interval '1 millisecond' END,
    due_at = clock_timestamp() + CASE WHEN i.happened THEN i.retention_ms ELSE $11 + $12 END * interval '1 millisecond',
    withdrawn = CASE WHEN i.happened OR (k.withdrawn_until > clock_timestamp() AND position(k.nonce IN k.withdrawn) > 0)
      THEN k.withdrawn
      WHEN k.withdrawn_until > clock_timestamp()
      THEN substr(k.withdrawn, greatest(1, octet_length(k.withdrawn) - 16 * ($13 - 1) + 1)) || k.nonce
      ELSE k.nonce END,
    withdrawn_until = CASE WHEN i.happened THEN k.withdrawn_until
      ELSE clock_timestamp() + $11 * interval '1 millisecond' END
  FROM (SELECT * FROM input ORDER BY scope, id) AS i
  WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token
    AND (k.state = 'unknown' OR (k.state = 'claimed' AND k.hold AND k.until <= clock_timestamp()))
  RETURNING i.n, k.until
)
SELECT i.n, CASE WHEN w.n IS NOT NULL THEN i.token END AS won_token, semel.us(w.until) AS won_until,
  NULL::integer AS won_attempt, semel.us(clock_timestamp()) AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, semel.us(k.until) AS until, k.outcome_code,
  k.outcome, k.digest, semel.us(k.tombstone_until) AS tombstone_until, k.withdrawn,
  semel.us(k.withdrawn_until) AS withdrawn_until
FROM input AS i LEFT JOIN won AS w ON w.n = i.n LEFT JOIN seen AS k ON k.n = i.n
