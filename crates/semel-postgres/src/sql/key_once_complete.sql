-- $1 scope, $2 id, $3 token, $4 nonce, $5 outcome code, $6 outcome, $7 retention_ms, $8 tombstone_ms.
UPDATE semel.key SET outcome_code = $5, outcome = $6,
  until = clock_timestamp() + $7 * interval '1 millisecond',
  tombstone_until = clock_timestamp() + ($7 + $8) * interval '1 millisecond',
  due_at = clock_timestamp() + $7 * interval '1 millisecond'
WHERE scope = $1 AND id = $2 AND token = $3 AND nonce = $4 AND state = 'done'
