-- $1 scopes, $2 ids, $3 tokens, $4 whether it happened, $5 outcome codes, $6 outcomes, $7 retention_ms,
-- $8 tombstone_ms, sorted by key, no key twice; $9 lock_timeout, $10 how long a nonce stays withdrawn and $11 how long
-- after that the row stays (both in ms), $12 nonces remembered, $13 whether the key is closed: whatever it holds becomes
-- a tombstone.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $9, true))
UPDATE semel.key AS k SET
  state = CASE WHEN i.closed THEN 'tombstone' WHEN i.happened THEN 'done' ELSE 'absent' END,
  fingerprint = CASE WHEN i.happened OR i.closed THEN k.fingerprint END,
  outcome_code = i.outcome_code, outcome = i.outcome,
  digest = CASE WHEN i.closed THEN semel.derive_id(
    convert_to(CASE WHEN k.state = 'done' THEN k.outcome_code ELSE 'f' END, 'UTF8'),
    CASE WHEN k.state = 'done' THEN k.outcome ELSE '' END) END,
  until = CASE WHEN i.happened THEN clock_timestamp() + i.retention_ms::float8 * interval '1 millisecond' END,
  tombstone_until = CASE WHEN i.happened OR i.closed
    THEN greatest(clock_timestamp() + (i.retention_ms + i.tombstone_ms)::float8 * interval '1 millisecond',
      CASE WHEN i.closed THEN k.tombstone_until END) END,
  due_at = CASE WHEN i.closed
    THEN greatest(clock_timestamp() + (i.retention_ms + i.tombstone_ms)::float8 * interval '1 millisecond',
      k.tombstone_until, k.withdrawn_until) + $11::float8 * interval '1 millisecond'
    ELSE clock_timestamp() + CASE WHEN i.happened THEN i.retention_ms ELSE $10 + $11 END::float8 * interval '1 millisecond' END,
  withdrawn = CASE WHEN i.happened OR i.closed
      OR (k.withdrawn_until > clock_timestamp() AND position(k.nonce IN k.withdrawn) > 0)
    THEN k.withdrawn
    WHEN k.withdrawn_until > clock_timestamp()
    THEN substr(k.withdrawn, greatest(1, octet_length(k.withdrawn) - 16 * ($12 - 1) + 1)) || k.nonce
    ELSE k.nonce END,
  withdrawn_until = CASE WHEN i.happened OR i.closed THEN k.withdrawn_until
    ELSE clock_timestamp() + $10::float8 * interval '1 millisecond' END
FROM (SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::boolean[], $5::text[], $6::bytea[],
    $7::bigint[], $8::bigint[], $13::boolean[])
    WITH ORDINALITY AS i (scope, id, token, happened, outcome_code, outcome, retention_ms, tombstone_ms, closed, n)
  ORDER BY scope, id) AS i
WHERE k.scope = i.scope AND k.id = i.id AND k.token = i.token
  AND CASE WHEN i.closed
    THEN k.state IN ('claimed', 'unknown') OR (k.state = 'done' AND k.until > clock_timestamp())
    ELSE k.state = 'unknown' OR (k.state = 'claimed' AND k.hold AND k.until <= clock_timestamp()) END
RETURNING i.n, CASE WHEN i.closed THEN k.tombstone_until ELSE k.until END AS won_until, clock_timestamp() AS now, k.waited
