-- Whether a mark may be written so: what semel.check_key and its sisters explain where it may not.
CREATE FUNCTION semel.may_mark(
  scope bytea, id bytea, fingerprint bytea, outcome_code text, outcome bytea, retention_ms bigint, tombstone_ms bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
  RETURN octet_length(scope) BETWEEN 1 AND 255 AND octet_length(id) BETWEEN 1 AND 255 AND octet_length(fingerprint) = 33
    AND outcome_code IN ('s', 'r', 'f') AND octet_length(outcome) <= 1048576
    AND (outcome_code <> 'f' OR octet_length(outcome) = 0)
    AND retention_ms BETWEEN 1 AND 34560000000 AND tombstone_ms BETWEEN 0 AND 34560000000;

-- Marks a key of which nothing is known as done in this transaction, and gives its token; null where it is taken or an
-- argument is wrong: semel.once_told says which. A concurrent duplicate waits here for the end of the transaction that came
-- first. This is what every first run pays, so it names all that it uses in full and has no `SET`.
CREATE FUNCTION semel.once_mark(
  scope bytea, id bytea, fingerprint bytea, nonce bytea, outcome_code text, outcome bytea, retention_ms bigint,
  tombstone_ms bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE marked bigint; too_old boolean;
BEGIN
  IF semel.may_mark($1, $2, $3, $5, $6, $7, $8) THEN
    INSERT INTO semel.key AS r (scope, id, state, fingerprint, token, nonce, attempt, until, tombstone_until, due_at,
      outcome_code, outcome)
    VALUES ($1, $2, 'done', $3, pg_catalog.nextval('semel.token'::pg_catalog.regclass), $4, 1, semel.in_ms($7),
      semel.in_ms($7 OPERATOR(pg_catalog.+) $8), semel.in_ms($7), $5, $6)
    ON CONFLICT (scope, id) DO NOTHING
    RETURNING r.token, CASE WHEN semel.drawn_long_ago(r.until, $7) THEN semel.token_too_old() END INTO marked, too_old;
  END IF;
  RETURN marked;
END $$;

-- How a key stands that is taken; or marks it after all, where it was freed or may be taken over.
CREATE FUNCTION semel.once_told(
  scope bytea, id bytea, fingerprint bytea, nonce bytea, outcome_code text, outcome bytea, retention_ms bigint,
  tombstone_ms bigint, OUT verdict text, OUT token bigint, OUT until timestamptz, OUT lease_left_ms bigint,
  OUT told_code text, OUT told_outcome bytea
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; began timestamptz;
BEGIN
  PERFORM semel.check_key($1, $2), semel.check_fingerprint($3), semel.check_outcome($5, $6, $7, $8);
  FOR tries IN 1..16 LOOP
    SELECT * INTO k FROM semel.key AS r WHERE r.scope = $1 AND r.id = $2;
    IF NOT FOUND THEN
      once_told.until := semel.in_ms($7);
      once_told.token := semel.once_mark($1, $2, $3, $4, $5, $6, $7, $8);
      CONTINUE WHEN once_told.token IS NULL;
      once_told.verdict := 'first';
      RETURN;
    END IF;
    once_told.verdict := semel.key_verdict(k, $3, $4);
    IF once_told.verdict <> 'free' THEN
      once_told.token := CASE WHEN once_told.verdict = 'unknown' THEN k.token END;
      once_told.until := CASE once_told.verdict WHEN 'done' THEN k.until WHEN 'gone' THEN k.tombstone_until END;
      IF once_told.verdict = 'busy' THEN
        once_told.lease_left_ms := semel.left_ms(k.until);
      ELSIF once_told.verdict = 'done' THEN
        once_told.told_code := k.outcome_code; once_told.told_outcome := k.outcome;
      END IF;
      RETURN;
    END IF;
    began := clock_timestamp();
    UPDATE semel.key AS r SET state = 'done', fingerprint = $3, token = nextval('semel.token'::regclass),
      nonce = $4, attempt = CASE WHEN r.state = 'claimed' THEN r.attempt + 1 ELSE 1 END,
      until = semel.in_ms($7), tombstone_until = semel.in_ms($7 + $8), due_at = semel.in_ms($7), outcome_code = $5,
      outcome = $6, digest = NULL
    WHERE r.scope = $1 AND r.id = $2 AND semel.key_verdict(r, $3, $4) = 'free'
    RETURNING r.token, r.until INTO once_told.token, once_told.until;
    CONTINUE WHEN NOT FOUND;
    IF clock_timestamp() - began > interval '30 seconds' THEN
      PERFORM semel.token_too_old();
    END IF;
    once_told.verdict := 'first';
    RETURN;
  END LOOP;
  PERFORM semel.key_restless();
END $$;

-- A nonce of a mark that no caller is ever told: the mark ends with its transaction, so nobody can come back with it.
CREATE FUNCTION semel.untold_nonce() RETURNS bytea LANGUAGE sql VOLATILE
  RETURN uuid_send(gen_random_uuid());

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
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE too_old boolean;
BEGIN
  -- As semel.once_mark; the call would cost as much as the insert.
  IF semel.may_mark($1, $2, $3, 'f', '', $4, $5) THEN
    INSERT INTO semel.key AS r (scope, id, state, fingerprint, token, nonce, attempt, until, tombstone_until, due_at,
      outcome_code, outcome)
    VALUES ($1, $2, 'done', $3, pg_catalog.nextval('semel.token'::pg_catalog.regclass), semel.untold_nonce(), 1,
      semel.in_ms($4), semel.in_ms($4 OPERATOR(pg_catalog.+) $5), semel.in_ms($4), 'f', '')
    ON CONFLICT (scope, id) DO NOTHING
    RETURNING r.token, r.until, CASE WHEN semel.drawn_long_ago(r.until, $4) THEN semel.token_too_old() END
      INTO once.token, once.until, too_old;
    IF FOUND THEN
      once.verdict := 'first';
      RETURN;
    END IF;
  END IF;
  SELECT * INTO once.verdict, once.token, once.until, once.lease_left_ms, once.outcome_code,
      once.outcome
  FROM semel.once_told($1, $2, $3, semel.untold_nonce(), 'f', '', $4, $5);
END $$;

-- As semel.once, for work whose outcome is known before it is done: the mark carries it, and on `first` nothing is left to
-- do but the work.
CREATE FUNCTION semel.once_with(
  scope bytea, id bytea, fingerprint bytea, known bytea, known_code text DEFAULT 's',
  retention_ms bigint DEFAULT 86400000, tombstone_ms bigint DEFAULT 2592000000, OUT verdict text, OUT token bigint,
  OUT until timestamptz, OUT lease_left_ms bigint, OUT outcome_code text, OUT outcome bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE too_old boolean;
BEGIN
  -- As semel.once_mark; the call would cost as much as the insert.
  IF semel.may_mark($1, $2, $3, $5, $4, $6, $7) THEN
    INSERT INTO semel.key AS r (scope, id, state, fingerprint, token, nonce, attempt, until, tombstone_until, due_at,
      outcome_code, outcome)
    VALUES ($1, $2, 'done', $3, pg_catalog.nextval('semel.token'::pg_catalog.regclass), semel.untold_nonce(), 1,
      semel.in_ms($6), semel.in_ms($6 OPERATOR(pg_catalog.+) $7), semel.in_ms($6), $5, $4)
    ON CONFLICT (scope, id) DO NOTHING
    RETURNING r.token, r.until, CASE WHEN semel.drawn_long_ago(r.until, $6) THEN semel.token_too_old() END
      INTO once_with.token, once_with.until, too_old;
    IF FOUND THEN
      once_with.verdict := 'first';
      RETURN;
    END IF;
  END IF;
  SELECT * INTO once_with.verdict, once_with.token, once_with.until, once_with.lease_left_ms, once_with.outcome_code,
      once_with.outcome
  FROM semel.once_told($1, $2, $3, semel.untold_nonce(), $5, $4, $6, $7);
END $$;

-- Whether a run may end so.
CREATE FUNCTION semel.may_end(scope bytea, id bytea, outcome_code text, outcome bytea) RETURNS boolean LANGUAGE sql IMMUTABLE
  RETURN octet_length(scope) BETWEEN 1 AND 255 AND octet_length(id) BETWEEN 1 AND 255 AND outcome_code IN ('s', 'r', 'f')
    AND octet_length(outcome) <= 1048576 AND (outcome_code <> 'f' OR octet_length(outcome) = 0);

-- What an ended mark is not: SQLSTATE SM211.
CREATE FUNCTION semel.not_marked(by text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'SEM0211: the key is not marked by this %', by USING ERRCODE = 'SM211',
    HINT = 'store its outcome once, in the transaction that marked it, with the token that semel.once gave';
END $$;

-- Stores what the work of semel.once came to, in the same transaction. Committed without it, duplicates hear done with
-- outcome_code f: it is never run again.
CREATE FUNCTION semel.once_done(scope bytea, id bytea, token bigint, outcome bytea DEFAULT '', outcome_code text DEFAULT 's')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF semel.may_end($1, $2, $5, $4) THEN
    -- No indexed column changes, so that the row stays on its page and in its indexes where there is room.
    UPDATE semel.key AS r SET outcome_code = $5, outcome = $4
    WHERE r.scope OPERATOR(pg_catalog.=) $1 AND r.id OPERATOR(pg_catalog.=) $2 AND r.token OPERATOR(pg_catalog.=) $3
      AND r.state OPERATOR(pg_catalog.=) 'done' AND r.outcome_code OPERATOR(pg_catalog.=) 'f';
    IF NOT FOUND THEN
      PERFORM semel.not_marked('token');
    END IF;
  ELSE
    PERFORM semel.check_key($1, $2), semel.check_outcome($5, $4, 1, 0);
  END IF;
END $$;

-- Marks after all, or says why it cannot.
CREATE FUNCTION semel.once_or_raise(
  scope bytea, id bytea, fingerprint bytea, nonce bytea, outcome_code text, outcome bytea, retention_ms bigint,
  tombstone_ms bigint
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE told record;
BEGIN
  told := semel.once_told($1, $2, $3, $4, $5, $6, $7, $8);
  IF told.verdict <> 'first' THEN
    RAISE EXCEPTION 'SEM0212: the key is taken: %', told.verdict USING ERRCODE = 'SM212', DETAIL = told.verdict,
      HINT = 'roll back; semel.outcome tells what to answer';
  END IF;
  RETURN told.token;
END $$;

-- For work whose only effects are in this transaction: do it first, and call this as the last statement. A duplicate gets
-- SQLSTATE SM212: roll back, then semel.outcome tells what to answer.
CREATE FUNCTION semel.once_last(
  scope bytea, id bytea, fingerprint bytea, outcome bytea DEFAULT '', outcome_code text DEFAULT 's',
  retention_ms bigint DEFAULT 86400000, tombstone_ms bigint DEFAULT 2592000000, nonce bytea DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE marked bigint;
BEGIN
  marked := semel.once_mark($1, $2, $3, coalesce($8, semel.untold_nonce()), $5, $4, $6, $7);
  IF marked IS NULL THEN
    marked := semel.once_or_raise($1, $2, $3, coalesce($8, semel.untold_nonce()), $5, $4, $6, $7);
  END IF;
  RETURN marked;
END $$;

-- As semel.once_done, by the nonce of the mark: for the Rust store, whose last statement takes no parameters, where it has no
-- session to prepare one in.
CREATE FUNCTION semel.once_end(scope bytea, id bytea, nonce bytea, outcome bytea, outcome_code text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE semel.key AS r SET outcome_code = $5, outcome = $4
  WHERE r.scope OPERATOR(pg_catalog.=) $1 AND r.id OPERATOR(pg_catalog.=) $2 AND r.nonce OPERATOR(pg_catalog.=) $3
    AND r.state OPERATOR(pg_catalog.=) 'done' AND r.outcome_code OPERATOR(pg_catalog.=) 'f';
  IF NOT FOUND THEN
    PERFORM semel.not_marked('nonce');
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

-- The cluster and the timeline that the tokens were drawn on, and the number that this table had there: a dump that is loaded
-- makes the table anew, under another number, on the same cluster too.
CREATE TABLE semel.key_home (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  system_id bigint NOT NULL,
  timeline  bigint NOT NULL,
  table_id  oid NOT NULL
);
INSERT INTO semel.key_home (system_id, timeline, table_id)
  SELECT s.system_identifier, semel.key_timeline(), 'semel.key_home'::regclass FROM pg_control_system() AS s;

-- Whether the tokens were drawn on another cluster or timeline, or before a dump was loaded: the database was restored, copied
-- or failed over, and the sequence may have gone back behind tokens that were handed out.
CREATE FUNCTION semel.keys_moved() RETURNS boolean LANGUAGE sql STABLE
  AS $$ SELECT NOT EXISTS (SELECT FROM semel.key_home AS h, pg_control_system() AS s
    WHERE h.system_id = s.system_identifier AND h.timeline = semel.key_timeline()
      AND h.table_id = 'semel.key_home'::regclass) $$;

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
  UPDATE semel.key_home SET (system_id, timeline, table_id) =
    (SELECT s.system_identifier, semel.key_timeline(), 'semel.key_home'::regclass FROM pg_control_system() AS s);
  RETURN first;
END $$;
