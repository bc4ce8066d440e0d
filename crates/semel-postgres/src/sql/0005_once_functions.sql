
-- Marks a key as done in this transaction, unless it is taken: then says how it stands. A concurrent duplicate waits here
-- for the end of the transaction that came first.
CREATE FUNCTION semel.once_mark(
  scope bytea, id bytea, fingerprint bytea, nonce bytea, outcome_code text, outcome bytea, retention_ms bigint,
  tombstone_ms bigint, OUT verdict text, OUT k semel.key
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE began timestamptz;
BEGIN
  PERFORM semel.check_key(once_mark.scope, once_mark.id), semel.check_fingerprint(once_mark.fingerprint),
    semel.check_outcome(once_mark.outcome_code, once_mark.outcome, retention_ms, tombstone_ms);
  FOR tries IN 1..16 LOOP
    began := clock_timestamp();
    INSERT INTO semel.key AS r (scope, id, state, fingerprint, token, nonce, attempt, until, tombstone_until, due_at,
      outcome_code, outcome)
    VALUES (once_mark.scope, once_mark.id, 'done', once_mark.fingerprint, nextval('semel.token'::regclass), once_mark.nonce, 1,
      semel.in_ms(retention_ms), semel.in_ms(retention_ms + tombstone_ms), semel.in_ms(retention_ms),
      once_mark.outcome_code, once_mark.outcome)
    ON CONFLICT (scope, id) DO NOTHING RETURNING r.* INTO k;
    IF NOT FOUND THEN
      SELECT * INTO k FROM semel.key AS r WHERE r.scope = once_mark.scope AND r.id = once_mark.id;
      CONTINUE WHEN NOT FOUND;
      verdict := semel.key_verdict(k, once_mark.fingerprint, once_mark.nonce);
      IF verdict <> 'free' THEN
        RETURN;
      END IF;
      began := clock_timestamp();
      UPDATE semel.key AS r SET state = 'done', fingerprint = once_mark.fingerprint, token = nextval('semel.token'::regclass),
        nonce = once_mark.nonce, attempt = CASE WHEN r.state = 'claimed' THEN r.attempt + 1 ELSE 1 END,
        until = semel.in_ms(retention_ms), tombstone_until = semel.in_ms(retention_ms + tombstone_ms),
        due_at = semel.in_ms(retention_ms), outcome_code = once_mark.outcome_code, outcome = once_mark.outcome,
        digest = NULL
      WHERE r.scope = once_mark.scope AND r.id = once_mark.id
        AND semel.key_verdict(r, once_mark.fingerprint, once_mark.nonce) = 'free'
      RETURNING r.* INTO k;
      CONTINUE WHEN NOT FOUND;
    END IF;
    IF clock_timestamp() - began > interval '30 seconds' THEN
      PERFORM semel.token_too_old();
    END IF;
    verdict := 'first';
    RETURN;
  END LOOP;
  PERFORM semel.key_restless();
END $$;

-- A key in your own transaction: mark, outcome and your rows commit together, or nothing of it. verdict:
--   first       do the work in this transaction, then semel.once_done with this token
--   done        answer outcome_code and outcome
--   busy, unknown, mismatch, gone   as semel.claim
-- A concurrent duplicate waits for the first one's end (lock_timeout bounds it: SQLSTATE 55P03), then hears done; after a
-- rollback it is first. Under REPEATABLE READ and above it gets 40001 instead: repeat the whole transaction.
CREATE FUNCTION semel.once(
  scope bytea, id bytea, fingerprint bytea, retention_ms bigint DEFAULT 86400000,
  tombstone_ms bigint DEFAULT 2592000000, OUT verdict text, OUT token bigint, OUT until timestamptz,
  OUT lease_left_ms bigint, OUT outcome_code text, OUT outcome bytea
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE m record; k semel.key;
BEGIN
  SELECT * INTO m FROM semel.once_mark($1, $2, $3, semel.nonce(), 'f', '', $4, $5);
  once.verdict := m.verdict; k := m.k;
  once.token := CASE WHEN once.verdict IN ('first', 'unknown') THEN k.token END;
  once.until := CASE once.verdict WHEN 'first' THEN k.until WHEN 'done' THEN k.until WHEN 'gone' THEN k.tombstone_until END;
  IF once.verdict = 'busy' THEN
    once.lease_left_ms := semel.left_ms(k.until);
  ELSIF once.verdict = 'done' THEN
    once.outcome_code := k.outcome_code; once.outcome := k.outcome;
  END IF;
END $$;

-- Stores what the work of semel.once came to, in the same transaction. Committed without it, duplicates hear done with
-- outcome_code f: it is never run again.
CREATE FUNCTION semel.once_done(scope bytea, id bytea, token bigint, outcome bytea DEFAULT '', outcome_code text DEFAULT 's')
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM semel.check_key($1, $2), semel.check_outcome($5, $4, 1, 0);
  UPDATE semel.key AS r SET outcome_code = $5, outcome = $4
  WHERE r.scope = $1 AND r.id = $2 AND r.token = $3 AND r.state = 'done' AND r.outcome_code = 'f';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'SEM0211: the key is not marked by this token' USING ERRCODE = 'SM211',
      HINT = 'call semel.once_done once, in the transaction in which semel.once said first, with its token';
  END IF;
END $$;

-- For work whose only effects are in this transaction: do it first, and call this as the last statement. A duplicate gets
-- SQLSTATE SM212: roll back, then semel.outcome tells what to answer.
CREATE FUNCTION semel.once_last(
  scope bytea, id bytea, fingerprint bytea, outcome bytea DEFAULT '', outcome_code text DEFAULT 's',
  retention_ms bigint DEFAULT 86400000, tombstone_ms bigint DEFAULT 2592000000, nonce bytea DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE m record;
BEGIN
  SELECT * INTO m FROM semel.once_mark($1, $2, $3, coalesce($8, semel.nonce()), $5, $4, $6, $7);
  IF m.verdict <> 'first' THEN
    RAISE EXCEPTION 'SEM0212: the key is taken: %', m.verdict USING ERRCODE = 'SM212', DETAIL = m.verdict,
      HINT = 'roll back; semel.outcome tells what to answer';
  END IF;
  RETURN (m.k).token;
END $$;

-- As semel.once_done, by the nonce of the mark: for the Rust store, whose last statement takes no parameters.
CREATE FUNCTION semel.once_end(scope bytea, id bytea, nonce bytea, outcome bytea, outcome_code text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE semel.key AS r SET outcome_code = $5, outcome = $4
  WHERE r.scope = $1 AND r.id = $2 AND r.nonce = $3 AND r.state = 'done' AND r.outcome_code = 'f';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'SEM0211: the key is not marked by this nonce' USING ERRCODE = 'SM211',
      HINT = 'end it in the transaction that marked it';
  END IF;
END $$;

-- The timeline that is written now. The last checkpoint's is the one before for a while after a promotion; a standby, which
-- draws no tokens, has no other.
CREATE FUNCTION semel.key_timeline() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN (SELECT c.timeline_id FROM pg_control_checkpoint() AS c);
  END IF;
  -- The first eight hexadecimal digits of the log's file.
  RETURN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint;
END $$;

-- The cluster and the timeline that the tokens were drawn on.
CREATE TABLE semel.key_home (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  system_id bigint NOT NULL,
  timeline  bigint NOT NULL
);
INSERT INTO semel.key_home (system_id, timeline)
  SELECT s.system_identifier, semel.key_timeline() FROM pg_control_system() AS s;

-- Whether the tokens belong to another cluster or timeline: the database was restored, copied or failed over, and the
-- sequence may have gone back behind tokens that were handed out.
CREATE FUNCTION semel.keys_moved() RETURNS boolean LANGUAGE sql STABLE
  AS $$ SELECT NOT EXISTS (SELECT FROM semel.key_home AS h, pg_control_system() AS s
    WHERE h.system_id = s.system_identifier AND h.timeline = semel.key_timeline()) $$;

-- After a restore, a copy or a fail-over that may have lost commits: moves the sequence past every token that can have been
-- drawn, to the microseconds since 1970 (nobody draws a million tokens a second for decades), and remembers where it is.
-- Returns the first token that will be handed out at least. It may be called at any time, any number of times.
CREATE FUNCTION semel.adopt_keys() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE first bigint;
BEGIN
  -- Two adoptions at once would set it twice.
  LOCK TABLE semel.key_home IN EXCLUSIVE MODE;
  SELECT greatest((SELECT max(k.token) + 1 FROM semel.key AS k), semel.us(clock_timestamp())) INTO first;
  -- Only now, because others drew tokens while it read; and with room for those drawn before it is set, so that it never
  -- goes back.
  first := greatest(first, nextval('semel.token'::regclass) + 1000000);
  PERFORM setval('semel.token'::regclass, first, false);
  UPDATE semel.key_home SET (system_id, timeline) =
    (SELECT s.system_identifier, semel.key_timeline() FROM pg_control_system() AS s);
  RETURN first;
END $$;
