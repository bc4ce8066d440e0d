-- $1 scopes, $2 ids, $3 tokens, $4 nonces, $5 outcome codes, $6 outcomes, $7 retention_ms, $8 tombstone_ms, sorted by
-- key, no key twice; $9 lock_timeout.
-- Token and nonce decide, not time: an expired or unknown claim is completed, too. The digest is made when only a
-- tombstone is left.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $9, true))
UPDATE semel.key AS k SET state = 'done', outcome_code = i.outcome_code, outcome = i.outcome,
  until = clock_timestamp() + i.retention_ms::float8 * interval '1 millisecond',
  tombstone_until = clock_timestamp() + (i.retention_ms + i.tombstone_ms)::float8 * interval '1 millisecond',
  due_at = clock_timestamp() + i.retention_ms::float8 * interval '1 millisecond'
FROM (SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::text[], $6::bytea[],
    $7::bigint[], $8::bigint[])
    WITH ORDINALITY AS i (scope, id, token, nonce, outcome_code, outcome, retention_ms, tombstone_ms, n)
  ORDER BY scope, id) AS i
WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token AND k.nonce = i.nonce
  AND k.state IN ('claimed', 'unknown')
RETURNING i.n, k.until AS won_until, clock_timestamp() AS now, k.waited
