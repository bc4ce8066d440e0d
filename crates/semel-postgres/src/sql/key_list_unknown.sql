-- As key_list.sql, for the state that people ask for: what is marked unknown ($4), by an index that holds little else, and
-- the claims that have expired since the last sweep.
WITH expired AS MATERIALIZED (
  SELECT k.* FROM semel.key AS k
  WHERE k.due_at <= statement_timestamp() AND k.state = 'claimed' AND k.hold
    AND ($1::bytea IS NULL OR k.scope = $1) AND ($2::bytea IS NULL OR (k.scope, k.id) > ($2::bytea, $3::bytea))
),
marked AS (
  SELECT k.* FROM semel.key AS k
  WHERE k.due_at IS NULL AND k.state = $4
    AND k.scope BETWEEN coalesce($1::bytea, '') AND coalesce($1::bytea, decode(repeat('ff', 256), 'hex'))
    AND (k.scope, k.id) > (coalesce($2::bytea, $1::bytea, ''), coalesce($3::bytea, ''))
  ORDER BY k.scope, k.id LIMIT $5
)
SELECT k.scope, k.id, statement_timestamp() AS now,
  k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until, k.outcome_code, k.outcome,
  k.digest, k.tombstone_until, k.withdrawn, k.withdrawn_until
FROM (SELECT * FROM expired UNION ALL SELECT * FROM marked) AS k
ORDER BY k.scope, k.id LIMIT $5
