-- $1 scopes, $2 ids, $3 tokens (or null), $4 nonces, sorted by key, no key twice; $5 lock_timeout, $6 how long a nonce
-- stays withdrawn and $7 how long after that the row stays (both in ms), $8 nonces remembered.
-- One row carries the record and its withdrawn nonces, so that a claim and a withdrawal of it are decided one after
-- the other, whichever comes first.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true)),
input AS MATERIALIZED (
  SELECT i.* FROM patience, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[])
    WITH ORDINALITY AS i (scope, id, token, nonce, n)
),
won AS (
  INSERT INTO semel.key AS k (scope, id, state, token, nonce, withdrawn, withdrawn_until, due_at)
  SELECT scope, id, 'absent', token, nonce, nonce, clock_timestamp() + $6::float8 * interval '1 millisecond',
    clock_timestamp() + ($6 + $7)::float8 * interval '1 millisecond'
  FROM (SELECT * FROM input ORDER BY scope, id) AS i
  ON CONFLICT (scope, id) DO UPDATE SET
    (state, fingerprint, token, nonce, until, outcome_code, outcome, digest, tombstone_until, due_at,
      withdrawn, withdrawn_until) =
    (SELECT CASE WHEN f.freed THEN 'absent' ELSE k.state END, CASE WHEN NOT f.freed THEN k.fingerprint END,
        CASE WHEN NOT f.freed THEN k.token END, CASE WHEN NOT f.freed THEN k.nonce END,
        CASE WHEN NOT f.freed THEN k.until END, CASE WHEN NOT f.freed THEN k.outcome_code END,
        CASE WHEN NOT f.freed THEN k.outcome END, CASE WHEN NOT f.freed THEN k.digest END,
        CASE WHEN NOT f.freed THEN k.tombstone_until END,
        CASE WHEN f.freed THEN clock_timestamp() + ($6 + $7)::float8 * interval '1 millisecond' ELSE k.due_at END,
        CASE WHEN position(excluded.nonce IN f.nonces) > 0 THEN f.nonces
          ELSE substr(f.nonces, greatest(1, octet_length(f.nonces) - 16 * ($8 - 1) + 1)) || excluded.nonce END,
        clock_timestamp() + $6::float8 * interval '1 millisecond'
      FROM (SELECT
        k.state IN ('absent', 'claimed', 'unknown') AND (k.state = 'absent' OR k.nonce = excluded.nonce)
          OR k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp() AS freed,
        CASE WHEN k.withdrawn_until > clock_timestamp() THEN k.withdrawn ELSE '' END AS nonces) AS f)
  WHERE k.state = 'absent'
    OR (k.state IN ('done', 'tombstone') AND k.tombstone_until <= clock_timestamp())
    OR (k.state IN ('claimed', 'unknown') AND k.nonce = excluded.nonce
      AND (excluded.token IS NULL OR k.token = excluded.token))
    OR (excluded.token IS NULL AND k.nonce <> excluded.nonce)
  RETURNING k.scope, k.id, k.waited
)
SELECT i.n, NULL::timestamptz AS won_until, clock_timestamp() AS now, w.waited
FROM won AS w JOIN input AS i ON w.scope = i.scope AND w.id = i.id
