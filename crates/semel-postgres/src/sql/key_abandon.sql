-- $1 scopes, $2 ids, $3 tokens, $4 nonces, sorted by key, no key twice; $5 lock_timeout.
-- A held key is unknown at once; one that may be run again is free for the next claimant. An
-- expired held one is unknown already.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true))
UPDATE semel.key AS k SET state = CASE WHEN k.hold THEN 'unknown' ELSE 'claimed' END,
  until = CASE WHEN NOT k.hold THEN least(k.until, clock_timestamp()) END,
  extended = CASE WHEN NOT k.hold THEN true END,
  due_at = CASE WHEN NOT k.hold THEN semel.claim_due(false, least(k.until, clock_timestamp())) END
FROM (SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[])
    WITH ORDINALITY AS i (scope, id, token, nonce, n)
  ORDER BY scope, id) AS i
WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token AND k.nonce = i.nonce AND k.state = 'claimed'
  AND NOT (k.hold AND k.until <= clock_timestamp())
RETURNING i.n, NULL::timestamptz AS won_until, clock_timestamp() AS now, k.waited
