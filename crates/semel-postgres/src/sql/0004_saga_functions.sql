-- The statements of coordinators are functions for two reasons. Their settings pin the plan: one made while the table
-- was small would otherwise stay on a scan of all of it while it grows. And a second statement in a function sees what
-- the first one waited for. Arrays are sorted by id, no id twice: nested loops take row locks in that order.

-- Accepts sagas. A row without `accepted` is what stands under an id already; no row: it went meanwhile, ask again.
CREATE FUNCTION semel.saga_submit(
  hashes bytea[], names text[], bodies text[], ids text[], definitions bytea[], fingerprints bytea[], inputs bytea[],
  statuses text[], states text[], owners bytea[], leases bigint[], dues bigint[], log_sagas text[], log_ns integer[],
  log_steps text[], log_ops text[], log_events text[], log_texts text[], wait text
) RETURNS TABLE (id text, accepted boolean, definition bytea, fingerprint bytea, status text, version bigint, owner bytea,
  pruned boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
  at timestamptz := clock_timestamp();
  new_ids text[];
BEGIN
  PERFORM set_config('lock_timeout', wait, true);
  INSERT INTO semel.saga_definition (hash, name, body)
  SELECT * FROM unnest(hashes, names, bodies) ON CONFLICT DO NOTHING;
  WITH made AS (
    INSERT INTO semel.saga (id, definition, fingerprint, input, status, state, version, epoch, owner, lease_until, due_at,
      accepted_at, updated_at, ended_at)
    SELECT w.id, w.definition, w.fingerprint, w.input, w.status, w.state, 1, (w.owner IS NOT NULL)::integer, w.owner,
      at + w.lease::float8 * interval '1 ms',
      CASE WHEN w.owner IS NULL THEN at ELSE timestamptz 'epoch' + w.due::float8 * interval '1 us' END, at, at,
      CASE WHEN w.status IN ('completed', 'compensated', 'abandoned') THEN at END
    FROM unnest(ids, definitions, fingerprints, inputs, statuses, states, owners, leases, dues)
      AS w (id, definition, fingerprint, input, status, state, owner, lease, due)
    ON CONFLICT DO NOTHING RETURNING id
  ),
  logged AS (
    INSERT INTO semel.saga_log (saga, version, n, at, step, op, event, text)
    SELECT l.saga, 1, l.n, at, l.step, l.op, l.event, l.text
    FROM unnest(log_sagas, log_ns, log_steps, log_ops, log_events, log_texts) AS l (saga, n, step, op, event, text)
    WHERE (l.saga IN (SELECT id FROM made)) IS TRUE
    ON CONFLICT DO NOTHING
  )
  SELECT coalesce(array_agg(made.id), '{}') INTO new_ids FROM made;
  RETURN QUERY SELECT m.id, true, NULL::bytea, NULL::bytea, NULL::text, 1::bigint, NULL::bytea, false
    FROM unnest(new_ids) AS m (id);
  IF cardinality(new_ids) < cardinality(ids) THEN
    RETURN QUERY SELECT s.id, false, s.definition, s.fingerprint, s.status, s.version, s.owner,
        s.tombstone_until IS NOT NULL
      FROM semel.saga AS s WHERE s.id = ANY (ids) AND s.id <> ALL (new_ids);
  END IF;
END $$;

-- Takes due sagas over that nobody owns. `unserved` definitions only when they have been due for `grace_ms`.
CREATE FUNCTION semel.saga_claim(nonce bytea, lease_ms bigint, most bigint, unserved bytea[], grace_ms bigint)
RETURNS SETOF semel.saga_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  at timestamptz := clock_timestamp();
  taken text[];
BEGIN
  WITH due AS MATERIALIZED (
    SELECT s.id FROM semel.saga AS s
    WHERE s.claim_at <= at AND (s.due_at <= at - grace_ms::float8 * interval '1 ms' OR s.definition <> ALL (unserved))
    ORDER BY s.claim_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED
  ),
  ours AS (
    UPDATE semel.saga AS s SET owner = nonce, epoch = s.epoch + 1,
      lease_until = clock_timestamp() + lease_ms::float8 * interval '1 ms'
    FROM due WHERE s.id = due.id RETURNING s.id
  )
  SELECT array_agg(ours.id) INTO taken FROM ours;
  -- A new statement, now that the rows are locked: a request that came just before is seen with its version.
  IF taken IS NOT NULL THEN
    RETURN QUERY SELECT r.* FROM semel.saga_record AS r WHERE r.id = ANY (taken);
  END IF;
END $$;

-- Writes transitions in one commit, each compare-and-set on epoch, owner and version; ended sagas match nothing. Answers
-- `saved` or `wrong_version`; a saga that is not in the answer belongs to another owner, or has ended.
CREATE FUNCTION semel.saga_save(
  ids text[], epochs bigint[], owners bytea[], versions bigint[], statuses text[], states text[], whys text[],
  dues bigint[], releases boolean[], requests bigint[], log_sagas text[], log_versions bigint[], log_ns integer[],
  log_steps text[], log_ops text[], log_events text[], log_texts text[], wait text
) RETURNS TABLE (id text, verdict text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
  at timestamptz := clock_timestamp();
  saved text[];
BEGIN
  PERFORM set_config('lock_timeout', wait, true);
  WITH w AS MATERIALIZED (
    SELECT *, w.status IN ('completed', 'compensated', 'abandoned') AS ends
    FROM unnest(ids, epochs, owners, versions, statuses, states, whys, dues, releases, requests)
      AS w (id, epoch, owner, version, status, state, why, due, release, requests)
  ),
  ok AS (
    UPDATE semel.saga AS s SET status = w.status, state = coalesce(w.state, s.state), why = w.why,
      version = s.version + 1, updated_at = clock_timestamp(),
      due_at = CASE WHEN NOT w.ends THEN timestamptz 'epoch' + w.due::float8 * interval '1 us' END,
      ended_at = CASE WHEN w.ends THEN clock_timestamp() END,
      owner = CASE WHEN NOT w.release THEN s.owner END, lease_until = CASE WHEN NOT w.release THEN s.lease_until END
    FROM w
    WHERE s.id = w.id AND s.epoch = w.epoch AND s.owner = w.owner AND s.version = w.version AND s.ended_at IS NULL
    RETURNING s.id, w.requests
  ),
  logged AS (
    INSERT INTO semel.saga_log (saga, version, n, at, step, op, event, text)
    SELECT l.saga, l.version, l.n, at, l.step, l.op, l.event, l.text
    FROM unnest(log_sagas, log_versions, log_ns, log_steps, log_ops, log_events, log_texts)
      AS l (saga, version, n, step, op, event, text)
    -- IS TRUE keeps it a hashed look-up: as a join it would be a loop over both.
    WHERE (l.saga IN (SELECT ok.id FROM ok)) IS TRUE
    ON CONFLICT DO NOTHING
  ),
  taken_up AS (
    DELETE FROM semel.saga_request AS r USING ok WHERE ok.requests > 0 AND r.saga = ok.id AND r.n <= ok.requests
  )
  SELECT coalesce(array_agg(ok.id), '{}') INTO saved FROM ok;
  RETURN QUERY SELECT o.id, 'saved' FROM unnest(saved) AS o (id);
  IF cardinality(saved) < cardinality(ids) THEN
    -- Neither epoch nor version ever goes back, so what did not match above does not match now.
    RETURN QUERY SELECT s.id, 'wrong_version' FROM unnest(ids, epochs, owners) AS w (id, epoch, owner)
      JOIN semel.saga AS s ON s.id = w.id AND s.epoch = w.epoch AND s.owner = w.owner
      WHERE s.ended_at IS NULL AND s.id <> ALL (saved);
  END IF;
END $$;

-- Keeps sagas for `lease_ms` from now, or gives them back where that is null. Answers those that were still owned.
CREATE FUNCTION semel.saga_hold(ids text[], epochs bigint[], owners bytea[], lease_ms bigint, wait text)
RETURNS TABLE (id text, epoch bigint, owner bytea, version bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('lock_timeout', wait, true);
  RETURN QUERY UPDATE semel.saga AS s SET lease_until = clock_timestamp() + lease_ms::float8 * interval '1 ms',
      owner = CASE WHEN lease_ms IS NOT NULL THEN s.owner END
    FROM unnest(ids, epochs, owners) AS w (id, epoch, owner)
    WHERE s.id = w.id AND s.epoch = w.epoch AND s.owner = w.owner AND s.ended_at IS NULL
    RETURNING s.id, s.epoch, w.owner, s.version;
END $$;

-- Asks something of a saga's owner, in the caller's transaction: commit soon, its owner waits. For operators, too:
--   SELECT * FROM semel.saga_request('order-7', 'cancel', 'ann', 'the customer called');
-- Answers noted, absent, ended (with its status) or too_many.
CREATE FUNCTION semel.saga_request(
  saga text, kind text, by_whom text, why text DEFAULT '', most bigint DEFAULT 100, wait text DEFAULT '5s'
) RETURNS TABLE (reply text, status text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  found_status text;
  ended boolean;
BEGIN
  PERFORM set_config('lock_timeout', wait, true);
  SELECT s.status, s.ended_at IS NOT NULL INTO found_status, ended
    FROM semel.saga AS s WHERE s.id = $1 FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'absent', NULL::text;
  ELSIF ended THEN
    RETURN QUERY SELECT 'ended', found_status;
  ELSIF (SELECT count(*) FROM semel.saga_request AS r WHERE r.saga = $1) >= most THEN
    RETURN QUERY SELECT 'too_many', found_status;
  ELSE
    INSERT INTO semel.saga_request (saga, kind, by_whom, why) VALUES ($1, $2, $3, $4);
    UPDATE semel.saga AS s SET version = s.version + 1, due_at = clock_timestamp(), updated_at = clock_timestamp()
      WHERE s.id = $1;
    RETURN QUERY SELECT 'noted', found_status;
  END IF;
END $$;

-- Drops what ended `retention_ms` ago to a tombstone for `tombstone_ms`, and tombstones that have ended.
CREATE FUNCTION semel.saga_prune(retention_ms bigint, tombstone_ms bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  at timestamptz := clock_timestamp();
  pruned bigint;
BEGIN
  WITH old AS MATERIALIZED (
    SELECT s.id FROM semel.saga AS s WHERE s.tombstone_until <= at
    ORDER BY s.tombstone_until LIMIT most FOR UPDATE SKIP LOCKED
  )
  DELETE FROM semel.saga AS s USING old WHERE s.id = old.id;
  WITH over AS MATERIALIZED (
    SELECT s.id FROM semel.saga AS s
    WHERE s.ended_at <= at - retention_ms::float8 * interval '1 ms' AND s.tombstone_until IS NULL
    ORDER BY s.ended_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED
  ),
  emptied AS (
    UPDATE semel.saga AS s SET tombstone_until = at + tombstone_ms::float8 * interval '1 ms', input = '', state = ''
    FROM over WHERE s.id = over.id RETURNING s.id
  ),
  logs AS (DELETE FROM semel.saga_log AS l USING emptied WHERE l.saga = emptied.id),
  requests AS (DELETE FROM semel.saga_request AS r USING emptied WHERE r.saga = emptied.id)
  SELECT count(*) INTO pruned FROM emptied;
  RETURN pruned;
END $$;
