-- $1 at most so many rows, $2 how long a record that has ended is left alone, in ms. Rows that somebody works on are
-- passed over. See Record::swept. The statement's time, because an index can be searched by it.
WITH due AS MATERIALIZED (
  SELECT k.scope, k.id, CASE
      WHEN k.state = 'claimed' AND k.hold AND k.until <= statement_timestamp() THEN 'unknown'
      WHEN k.state = 'claimed' AND NOT k.hold AND greatest(semel.claim_due(false, k.until),
        k.withdrawn_until + $2::float8 * interval '1 millisecond') <= statement_timestamp() THEN 'removed'
      WHEN k.state IN ('absent', 'done', 'tombstone')
        AND greatest(k.tombstone_until, k.withdrawn_until) + $2::float8 * interval '1 millisecond' <= statement_timestamp()
        THEN 'removed'
      WHEN k.state = 'done' AND k.until <= statement_timestamp() THEN 'tombstoned'
      ELSE 'later' END AS what
  FROM semel.key AS k
  WHERE k.due_at <= statement_timestamp() ORDER BY k.due_at LIMIT $1 FOR UPDATE SKIP LOCKED
),
removed AS (
  DELETE FROM semel.key AS k USING due AS d WHERE k.scope = d.scope AND k.id = d.id AND d.what = 'removed'
  RETURNING d.what
),
changed AS (
  UPDATE semel.key AS k SET
    state = CASE d.what WHEN 'unknown' THEN 'unknown' WHEN 'tombstoned' THEN 'tombstone' ELSE k.state END,
    outcome_code = CASE WHEN d.what <> 'tombstoned' THEN k.outcome_code END,
    outcome = CASE WHEN d.what <> 'tombstoned' THEN k.outcome END,
    digest = CASE WHEN d.what = 'tombstoned' THEN semel.derive_id(convert_to(k.outcome_code, 'UTF8'), k.outcome)
      ELSE k.digest END,
    due_at = CASE
      WHEN d.what = 'unknown' OR k.state = 'unknown' THEN NULL
      WHEN k.state = 'claimed' AND k.hold THEN k.until
      WHEN k.state = 'claimed'
        THEN greatest(semel.claim_due(false, k.until), k.withdrawn_until + $2::float8 * interval '1 millisecond')
      WHEN d.what = 'later' AND k.state = 'done' THEN k.until
      ELSE greatest(k.tombstone_until, k.withdrawn_until) + $2::float8 * interval '1 millisecond' END
  FROM due AS d WHERE k.scope = d.scope AND k.id = d.id AND d.what <> 'removed'
  RETURNING d.what
)
SELECT count(*) FILTER (WHERE what = 'unknown') AS unknown, count(*) FILTER (WHERE what = 'tombstoned') AS tombstoned,
  count(*) FILTER (WHERE what = 'removed') AS removed
FROM (SELECT what FROM removed UNION ALL SELECT what FROM changed) AS done
