-- $1 scope or null, $2 and $3 scope and id of the last page's end or null, $4 state or null, $5 rows at most. Rows of
-- another state may be among them, where the state that is stored does not tell what it reads as now. The plan is made once for all arguments, so that bounds which
-- may be null would keep it from the index; a scope has 255 bytes at most.
SELECT k.scope, k.id, statement_timestamp() AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until, k.outcome_code, k.outcome,
  k.digest, k.tombstone_until, k.withdrawn, k.withdrawn_until
FROM semel.key AS k
WHERE k.scope BETWEEN coalesce($1::bytea, '') AND coalesce($1::bytea, decode(repeat('ff', 256), 'hex'))
  AND (k.scope, k.id) > (coalesce($2::bytea, $1::bytea, ''), coalesce($3::bytea, ''))
  AND ($4::text IS NULL OR k.state = $4 OR ($4 = 'tombstone' AND k.state = 'done'))
ORDER BY k.scope, k.id LIMIT $5
