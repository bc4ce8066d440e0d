-- $1 scopes, $2 ids, $3 tokens, $4 nonces, $5 lease_ms, sorted by key, no key twice; $6 lock_timeout.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $6, true))
UPDATE semel.key AS k SET state = 'claimed', extended = true,
  until = greatest(k.until, clock_timestamp() + i.lease_ms::float8 * interval '1 millisecond'),
  due_at = semel.claim_due(k.hold, greatest(k.until, clock_timestamp() + i.lease_ms::float8 * interval '1 millisecond'))
FROM (SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[])
    WITH ORDINALITY AS i (scope, id, token, nonce, lease_ms, n)
  ORDER BY scope, id) AS i
WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token AND k.nonce = i.nonce
  AND k.state IN ('claimed', 'unknown')
RETURNING i.n, k.until AS won_until, clock_timestamp() AS now, NULL::boolean AS waited
