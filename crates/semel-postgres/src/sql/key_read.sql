-- $1 scopes, $2 ids.
SELECT i.n, NULL::bigint AS won_token, NULL::bigint AS won_until, NULL::integer AS won_attempt, semel.us(clock_timestamp()) AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, semel.us(k.until) AS until, k.outcome_code,
  k.outcome, k.digest, semel.us(k.tombstone_until) AS tombstone_until, k.withdrawn,
  semel.us(k.withdrawn_until) AS withdrawn_until
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS i (scope, id, n)
LEFT JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
