-- $1 scopes, $2 ids.
SELECT i.n, statement_timestamp() AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until, k.outcome_code, k.outcome,
  k.digest, k.tombstone_until, k.withdrawn, k.withdrawn_until
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS i (scope, id, n)
LEFT JOIN semel.key AS k ON k.scope = i.scope AND k.id = i.id
