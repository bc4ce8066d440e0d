-- Keys from any language and through any pooler: docs/sql.md. The rules are those of semel_core::claim::step; the same
-- laws and generated histories run over these functions and over the statements of the Rust store.

-- A scope made of parts, as Scope::of_parts makes it: no two lists of parts make the same scope.
CREATE FUNCTION semel.scope_of(VARIADIC parts bytea[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT CASE WHEN octet_length(whole) BETWEEN 1 AND 255 THEN whole ELSE semel.derive_id(VARIADIC $1) END
    FROM (SELECT coalesce(string_agg(convert_to(octet_length(p)::text || ':', 'UTF8') || p, ''::bytea ORDER BY n), ''::bytea) AS whole
      FROM unnest($1) WITH ORDINALITY AS part (p, n)) AS joined $$;

-- What was asked, as 33 bytes: the version of the recipe, then the hash of the parts. As Fingerprint::builder makes it.
CREATE FUNCTION semel.fingerprint(VARIADIC parts bytea[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT '\x01'::bytea || semel.derive_id(VARIADIC $1) $$;

-- 128 random bits of one attempt.
CREATE FUNCTION semel.nonce() RETURNS bytea LANGUAGE sql VOLATILE
  RETURN substr(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 1, 16);

-- What is wrong with an argument, with what to do: SQLSTATE SM210, docs/errors/SEM0210.md.
CREATE FUNCTION semel.bad(what text, is_bad boolean, hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF is_bad IS NOT FALSE THEN
    RAISE EXCEPTION 'SEM0210: %', what USING ERRCODE = 'SM210', HINT = hint;
  END IF;
END $$;

-- Checks what every function gets.
CREATE FUNCTION semel.check_key(scope bytea, id bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF octet_length(scope) BETWEEN 1 AND 255 AND octet_length(id) BETWEEN 1 AND 255 THEN
    RETURN;
  END IF;
  PERFORM semel.bad('scope: ' || coalesce(octet_length(scope)::text || ' bytes is outside 1..=255', 'null'),
    octet_length(scope) NOT BETWEEN 1 AND 255, 'make it with semel.scope_of(parts)');
  PERFORM semel.bad('key id: ' || coalesce(octet_length(id)::text || ' bytes is outside 1..=255', 'null'),
    octet_length(id) NOT BETWEEN 1 AND 255, 'make it with semel.derive_id(parts)');
END $$;

CREATE FUNCTION semel.check_run(scope bytea, id bytea, token bigint, nonce bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM semel.check_key(scope, id);
  PERFORM semel.bad('token: null', token IS NULL, 'pass the token that semel.claim has answered');
  PERFORM semel.bad('nonce: not 16 bytes', octet_length(nonce) <> 16, 'pass the nonce that semel.claim has answered');
END $$;

CREATE FUNCTION semel.check_fingerprint(fingerprint bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF octet_length(fingerprint) = 33 THEN
    RETURN;
  END IF;
  PERFORM semel.bad('fingerprint: not 33 bytes', true, 'make it with semel.fingerprint(parts of the request)');
END $$;

CREATE FUNCTION semel.check_lease(lease_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM semel.bad('lease: ' || coalesce(lease_ms::text, 'null') || ' ms is outside 1..=86400000',
    lease_ms NOT BETWEEN 1 AND 86400000, 'choose lease_ms within the limit');
END $$;

CREATE FUNCTION semel.check_outcome(outcome_code text, outcome bytea, retention_ms bigint, tombstone_ms bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF outcome_code IN ('s', 'r', 'f') AND octet_length(outcome) <= 1048576 AND retention_ms BETWEEN 1 AND 34560000000
    AND tombstone_ms BETWEEN 0 AND 34560000000 AND (outcome_code <> 'f' OR outcome = '') THEN
    RETURN;
  END IF;
  PERFORM semel.bad('outcome code: ' || coalesce(outcome_code, 'null'), outcome_code NOT IN ('s', 'r', 'f'),
    'pass ''s'' for a success, ''r'' for a refusal, ''f'' when the outcome is kept elsewhere or nowhere');
  PERFORM semel.bad('outcome: ' || coalesce(octet_length(outcome)::text || ' bytes is outside 0..=1048576', 'null'),
    octet_length(outcome) > 1048576, 'pass ''f'' as the code and keep the bytes elsewhere');
  PERFORM semel.bad('outcome: bytes with code f', outcome_code = 'f' AND outcome <> '', 'pass no bytes with code ''f''');
  PERFORM semel.bad('retention: ' || coalesce(retention_ms::text, 'null') || ' ms is outside 1..=34560000000',
    retention_ms NOT BETWEEN 1 AND 34560000000, 'choose retention_ms within the limit');
  PERFORM semel.bad('tombstone: ' || coalesce(tombstone_ms::text, 'null') || ' ms is outside 0..=34560000000',
    tombstone_ms NOT BETWEEN 0 AND 34560000000, 'choose tombstone_ms within the limit');
END $$;

-- A claim that is committed and not flushed is forgotten by a crash, and its effect is not (rule K7).
CREATE FUNCTION semel.durably() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- Milliseconds from now, rounded up.
CREATE FUNCTION semel.left_ms(at timestamptz) RETURNS bigint LANGUAGE sql VOLATILE
  AS $$ SELECT ceil(extract(epoch FROM $1 - clock_timestamp()) * 1000::numeric)::bigint $$;

-- Whether nothing of a record matters any more but its withdrawn nonces.
CREATE FUNCTION semel.is_over(k semel.key) RETURNS boolean LANGUAGE sql VOLATILE
  AS $$ SELECT ($1).state = 'absent' OR (($1).state IN ('done', 'tombstone') AND ($1).tombstone_until <= clock_timestamp()) $$;

-- The machine's answer to a claim of a record that is there: `free` where it may be granted.
CREATE FUNCTION semel.key_verdict(k semel.key, fingerprint bytea, nonce bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE now timestamptz := clock_timestamp();
BEGIN
  IF NOT semel.is_over(k) THEN
    -- A mismatch is judged before anything else (rule K11).
    IF k.fingerprint <> key_verdict.fingerprint THEN
      RETURN 'mismatch';
    ELSIF k.state = 'unknown' OR (k.state = 'claimed' AND k.hold AND k.until <= now) THEN
      RETURN 'unknown';
    ELSIF k.state = 'claimed' AND now < k.until THEN
      -- The same nonce is the same attempt, whose answer was lost (rule K3).
      RETURN CASE WHEN k.nonce = key_verdict.nonce AND NOT k.extended THEN 'granted' ELSE 'busy' END;
    ELSIF k.state = 'done' AND now < k.until THEN
      RETURN 'done';
    ELSIF k.state <> 'claimed' THEN
      RETURN 'gone';
    END IF;
  END IF;
  IF k.withdrawn_until > now AND position(key_verdict.nonce IN k.withdrawn) > 0
    AND (position(key_verdict.nonce IN k.withdrawn) - 1) % 16 = 0 THEN
    RETURN 'withdrawn';
  END IF;
  RETURN 'free';
END $$;

-- Gave up after others changed the key again and again.
CREATE FUNCTION semel.key_restless() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'others changed the key again and again; nothing was done'
    USING ERRCODE = '40001', HINT = 'repeat the whole transaction';
END $$;

-- Tells who waits for the end of a run. Part of the transaction, so only where somebody waits.
CREATE FUNCTION semel.key_ended(k semel.key) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF k.waited THEN
    PERFORM pg_notify('semel_key', encode(substr(semel.derive_id(k.scope, k.id), 1, 16), 'hex'));
  END IF;
END $$;

-- The right to run a key now. verdict:
--   granted     run it; commit first, then begin the effect; pass token and nonce to every later call
--   done        it is done: answer outcome_code and outcome
--   busy        somebody runs it; ask again in lease_left_ms at the latest
--   unknown     its owner was lost and it may have happened: a person settles it (semel.settle)
--   mismatch    the key was used for another request
--   gone        it was done, its outcome is no longer kept
--   withdrawn   this nonce was given back: leave the argument out to draw another
-- Leave nonce out, except to ask again after a lost answer: then pass the one of the first try.
CREATE FUNCTION semel.claim(
  scope bytea, id bytea, fingerprint bytea, hold boolean DEFAULT true, lease_ms bigint DEFAULT 30000,
  INOUT nonce bytea DEFAULT NULL, OUT verdict text, OUT token bigint, OUT until timestamptz, OUT attempt integer,
  OUT lease_left_ms bigint, OUT outcome_code text, OUT outcome bytea
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; began timestamptz;
BEGIN
  PERFORM semel.check_key(claim.scope, claim.id), semel.check_fingerprint(claim.fingerprint), semel.check_lease(lease_ms);
  PERFORM semel.bad('hold: null', claim.hold IS NULL, 'pass true unless the effect may be repeated');
  claim.nonce := coalesce(claim.nonce, semel.nonce());
  PERFORM semel.bad('nonce: not 16 bytes', octet_length(claim.nonce) <> 16, 'leave it out: 16 random bytes are drawn');
  PERFORM semel.durably();
  FOR tries IN 1..16 LOOP
    -- Replays and running keys are answered without a lock.
    SELECT * INTO k FROM semel.key AS r WHERE r.scope = claim.scope AND r.id = claim.id;
    claim.verdict := CASE WHEN FOUND THEN semel.key_verdict(k, claim.fingerprint, claim.nonce) ELSE 'free' END;
    IF claim.verdict <> 'free' THEN
      IF claim.verdict IN ('granted', 'unknown') THEN
        claim.token := k.token;
      END IF;
      IF claim.verdict IN ('granted', 'done') THEN
        claim.until := k.until;
      END IF;
      IF claim.verdict = 'granted' THEN
        claim.attempt := k.attempt;
      ELSIF claim.verdict = 'busy' THEN
        claim.lease_left_ms := semel.left_ms(k.until);
      ELSIF claim.verdict = 'done' THEN
        claim.outcome_code := k.outcome_code; claim.outcome := k.outcome;
      ELSIF claim.verdict = 'gone' THEN
        claim.until := k.tombstone_until;
      END IF;
      RETURN;
    END IF;
    began := clock_timestamp();
    INSERT INTO semel.key AS r (scope, id, state, fingerprint, token, nonce, hold, extended, attempt, until, due_at)
    VALUES (claim.scope, claim.id, 'claimed', claim.fingerprint, nextval('semel.token'::regclass), claim.nonce, claim.hold, false, 1,
      semel.in_ms(claim.lease_ms), semel.claim_due(claim.hold, semel.in_ms(claim.lease_ms)))
    -- Token and deadline are made under the row's lock, and the record is judged again there.
    ON CONFLICT (scope, id) DO UPDATE SET state = 'claimed', fingerprint = excluded.fingerprint,
      token = nextval('semel.token'::regclass), nonce = excluded.nonce, hold = excluded.hold, extended = false,
      attempt = CASE WHEN r.state = 'claimed' THEN r.attempt + 1 ELSE 1 END, until = semel.in_ms(claim.lease_ms),
      due_at = semel.claim_due(excluded.hold, semel.in_ms(claim.lease_ms)),
      outcome_code = NULL, outcome = NULL, digest = NULL, tombstone_until = NULL,
      waited = CASE WHEN r.state = 'claimed' THEN r.waited END
    WHERE semel.key_verdict(r, excluded.fingerprint, excluded.nonce) = 'free'
    RETURNING r.* INTO k;
    IF FOUND THEN
      IF clock_timestamp() - began > interval '30 seconds' THEN
        PERFORM semel.token_too_old();
      END IF;
      claim.verdict := 'granted'; claim.token := k.token; claim.until := k.until; claim.attempt := k.attempt;
      RETURN;
    END IF;
  END LOOP;
  PERFORM semel.key_restless();
END $$;

-- What a repeated end of a run hears (rule K2).
CREATE FUNCTION semel.key_repeated(k semel.key, digest bytea) RETURNS boolean LANGUAGE sql VOLATILE
  AS $$ SELECT $2 = CASE ($1).state WHEN 'tombstone' THEN ($1).digest
    ELSE semel.derive_id(convert_to(($1).outcome_code, 'UTF8'), ($1).outcome) END $$;

-- Stores what came of a run. verdict: ok, lease_lost (somebody else's by now, nothing changed: ask semel.outcome what to
-- answer), conflict (this run has ended with another outcome). Repeating it with the same outcome is ok.
CREATE FUNCTION semel.complete(
  scope bytea, id bytea, token bigint, nonce bytea, outcome bytea DEFAULT '', outcome_code text DEFAULT 's',
  retention_ms bigint DEFAULT 86400000, tombstone_ms bigint DEFAULT 2592000000,
  OUT verdict text, OUT until timestamptz
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key;
BEGIN
  PERFORM semel.check_run(complete.scope, complete.id, complete.token, complete.nonce),
    semel.check_outcome(complete.outcome_code, complete.outcome, retention_ms, tombstone_ms), semel.durably();
  FOR tries IN 1..16 LOOP
    UPDATE semel.key AS r SET state = 'done', outcome_code = complete.outcome_code, outcome = complete.outcome,
      until = semel.in_ms(retention_ms), tombstone_until = semel.in_ms(retention_ms + tombstone_ms),
      due_at = semel.in_ms(retention_ms)
    WHERE r.scope = complete.scope AND r.id = complete.id AND r.token = complete.token AND r.nonce = complete.nonce
      AND r.state IN ('claimed', 'unknown')
    RETURNING r.* INTO k;
    IF FOUND THEN
      PERFORM semel.key_ended(k);
      complete.verdict := 'ok'; complete.until := k.until;
      RETURN;
    END IF;
    SELECT * INTO k FROM semel.key AS r WHERE r.scope = complete.scope AND r.id = complete.id;
    IF NOT FOUND OR semel.is_over(k) OR k.token <> complete.token OR k.nonce <> complete.nonce THEN
      complete.verdict := 'lease_lost';
      RETURN;
    ELSIF k.state IN ('done', 'tombstone') THEN
      IF semel.key_repeated(k, semel.derive_id(convert_to(complete.outcome_code, 'UTF8'), complete.outcome)) THEN
        complete.verdict := 'ok';
        complete.until := CASE WHEN k.state = 'done' AND clock_timestamp() < k.until THEN k.until ELSE k.tombstone_until END;
      ELSE
        complete.verdict := 'conflict';
      END IF;
      RETURN;
    END IF;
  END LOOP;
  PERFORM semel.key_restless();
END $$;

-- Keeps a claim for lease_ms from now; never shortens it. verdict: ok, lease_lost.
CREATE FUNCTION semel.extend(
  scope bytea, id bytea, token bigint, nonce bytea, lease_ms bigint DEFAULT 30000, OUT verdict text, OUT until timestamptz
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key;
BEGIN
  PERFORM semel.check_run(extend.scope, extend.id, extend.token, extend.nonce), semel.check_lease(lease_ms),
    semel.durably();
  UPDATE semel.key AS r SET state = 'claimed', extended = true,
    until = greatest(r.until, semel.in_ms(lease_ms)),
    due_at = semel.claim_due(r.hold, greatest(r.until, semel.in_ms(lease_ms)))
  WHERE r.scope = extend.scope AND r.id = extend.id AND r.token = extend.token AND r.nonce = extend.nonce
    AND r.state IN ('claimed', 'unknown')
  RETURNING r.* INTO k;
  extend.verdict := CASE WHEN FOUND THEN 'ok' ELSE 'lease_lost' END;
  extend.until := k.until;
END $$;

-- The nonces that a record must not grant, with one more; at most eight.
CREATE FUNCTION semel.withdraw(k semel.key, nonce bytea) RETURNS bytea LANGUAGE sql VOLATILE
  AS $$ SELECT CASE WHEN position($2 IN held) > 0 THEN held
      ELSE substr(held, greatest(1, octet_length(held) - 16 * 7 + 1)) || $2 END
    FROM (SELECT CASE WHEN ($1).withdrawn_until > clock_timestamp() THEN ($1).withdrawn ELSE '' END AS held) AS now $$;

-- Gives a claim back because it is certain that nothing happened; or, without token, withdraws a claim whose answer never
-- came, which then is not granted any more should it still arrive (rule K4). verdict: ok, lease_lost, conflict (it is done).
CREATE FUNCTION semel.release(
  scope bytea, id bytea, nonce bytea, token bigint DEFAULT NULL, OUT verdict text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; mine boolean; frees boolean;
BEGIN
  PERFORM semel.check_key(release.scope, release.id),
    semel.bad('nonce: not 16 bytes', octet_length(release.nonce) <> 16, 'pass the nonce of the claim'), semel.durably();
  FOR tries IN 1..16 LOOP
    INSERT INTO semel.key (scope, id, state, withdrawn, withdrawn_until, due_at)
    VALUES (release.scope, release.id, 'absent', release.nonce, semel.in_ms(60000), semel.in_ms(120000))
    ON CONFLICT (scope, id) DO NOTHING;
    IF FOUND THEN
      release.verdict := 'ok';
      RETURN;
    END IF;
    SELECT * INTO k FROM semel.key AS r WHERE r.scope = release.scope AND r.id = release.id FOR UPDATE;
    CONTINUE WHEN NOT FOUND;
    mine := coalesce(k.nonce = release.nonce AND (release.token IS NULL OR k.token = release.token), false);
    frees := semel.is_over(k) OR (mine AND k.state IN ('claimed', 'unknown'));
    IF frees THEN
      UPDATE semel.key AS r SET state = 'absent', fingerprint = NULL, token = NULL, nonce = NULL, until = NULL,
        outcome_code = NULL, outcome = NULL, digest = NULL, tombstone_until = NULL, due_at = semel.in_ms(120000),
        withdrawn = semel.withdraw(k, release.nonce), withdrawn_until = semel.in_ms(60000)
      WHERE r.scope = release.scope AND r.id = release.id;
      PERFORM semel.key_ended(k);
      release.verdict := 'ok';
    ELSIF mine THEN
      release.verdict := 'conflict';
    ELSIF release.token IS NULL THEN
      -- Somebody else's run: that one goes on, but this nonce must not be granted after it.
      UPDATE semel.key AS r SET withdrawn = semel.withdraw(k, release.nonce), withdrawn_until = semel.in_ms(60000)
      WHERE r.scope = release.scope AND r.id = release.id;
      release.verdict := 'ok';
    ELSE
      release.verdict := 'lease_lost';
    END IF;
    RETURN;
  END LOOP;
  PERFORM semel.key_restless();
END $$;

-- Ends a run of which its owner does not know what came: a held key is unknown at once, another one free for the next
-- claimant. verdict: ok, lease_lost, conflict (it is done).
CREATE FUNCTION semel.abandon(scope bytea, id bytea, token bigint, nonce bytea, OUT verdict text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key;
BEGIN
  PERFORM semel.check_run(abandon.scope, abandon.id, abandon.token, abandon.nonce), semel.durably();
  UPDATE semel.key AS r SET state = CASE WHEN r.hold THEN 'unknown' ELSE 'claimed' END,
    until = CASE WHEN NOT r.hold THEN least(r.until, clock_timestamp()) END,
    extended = CASE WHEN NOT r.hold THEN true END,
    due_at = CASE WHEN NOT r.hold THEN semel.claim_due(false, least(r.until, clock_timestamp())) END
  WHERE r.scope = abandon.scope AND r.id = abandon.id AND r.token = abandon.token AND r.nonce = abandon.nonce
    AND r.state = 'claimed' AND NOT (r.hold AND r.until <= clock_timestamp())
  RETURNING r.* INTO k;
  IF FOUND THEN
    PERFORM semel.key_ended(k);
    abandon.verdict := 'ok';
    RETURN;
  END IF;
  SELECT * INTO k FROM semel.key AS r WHERE r.scope = abandon.scope AND r.id = abandon.id;
  abandon.verdict := CASE
    WHEN NOT FOUND OR semel.is_over(k) OR k.token <> abandon.token OR k.nonce <> abandon.nonce THEN 'lease_lost'
    WHEN k.state IN ('done', 'tombstone') THEN 'conflict'
    ELSE 'ok' END;
END $$;

-- What a person or a hook has found out about an unknown key: its outcome, or, without outcome_code, that it certainly did
-- not happen, so that it may be claimed again. verdict: ok, lease_lost (another run, or not unknown), conflict.
CREATE FUNCTION semel.settle(
  scope bytea, id bytea, token bigint, outcome_code text DEFAULT NULL, outcome bytea DEFAULT '',
  retention_ms bigint DEFAULT 86400000, tombstone_ms bigint DEFAULT 2592000000, OUT verdict text, OUT until timestamptz
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; happened boolean := settle.outcome_code IS NOT NULL;
BEGIN
  PERFORM semel.check_key(settle.scope, settle.id), semel.bad('token: null', settle.token IS NULL,
      'pass the token that semel.outcome shows'),
    semel.check_outcome(coalesce(settle.outcome_code, 's'), settle.outcome, retention_ms, tombstone_ms), semel.durably();
  SELECT * INTO k FROM semel.key AS r WHERE r.scope = settle.scope AND r.id = settle.id FOR UPDATE;
  IF NOT FOUND OR semel.is_over(k) THEN
    settle.verdict := CASE WHEN happened THEN 'lease_lost' ELSE 'ok' END;
  ELSIF k.token <> settle.token OR (k.state = 'claimed' AND NOT (k.hold AND k.until <= clock_timestamp())) THEN
    settle.verdict := 'lease_lost';
  ELSIF k.state IN ('done', 'tombstone') THEN
    IF happened AND semel.key_repeated(k, semel.derive_id(convert_to(settle.outcome_code, 'UTF8'), settle.outcome)) THEN
      settle.verdict := 'ok';
      settle.until := CASE WHEN k.state = 'done' AND clock_timestamp() < k.until THEN k.until ELSE k.tombstone_until END;
    ELSE
      settle.verdict := 'conflict';
    END IF;
  ELSIF happened THEN
    UPDATE semel.key AS r SET state = 'done', outcome_code = settle.outcome_code, outcome = settle.outcome, digest = NULL,
      until = semel.in_ms(retention_ms), tombstone_until = semel.in_ms(retention_ms + tombstone_ms),
      due_at = semel.in_ms(retention_ms)
    WHERE r.scope = settle.scope AND r.id = settle.id RETURNING r.* INTO k;
    PERFORM semel.key_ended(k);
    settle.verdict := 'ok'; settle.until := k.until;
  ELSE
    UPDATE semel.key AS r SET state = 'absent', fingerprint = NULL, until = NULL, tombstone_until = NULL,
      due_at = semel.in_ms(120000), withdrawn = semel.withdraw(k, k.nonce), withdrawn_until = semel.in_ms(60000)
    WHERE r.scope = settle.scope AND r.id = settle.id;
    PERFORM semel.key_ended(k);
    settle.verdict := 'ok';
  END IF;
END $$;

-- Closes keys of a scope whose principal is gone (rule K13): of each only a tombstone stays, for retention_ms + tombstone_ms
-- and never for less than before. At most keys_max, in the order of their ids, behind `after`; `after` in the answer is where
-- the next call begins, null at the end of a pass. Begin again until a whole pass has closed nothing. What the keys held
-- cannot be read again, and a run under way cannot store its outcome.
CREATE FUNCTION semel.close_scope(
  scope bytea, INOUT after bytea DEFAULT NULL, keys_max integer DEFAULT 1000, retention_ms bigint DEFAULT 86400000,
  tombstone_ms bigint DEFAULT 2592000000, OUT closed bigint
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; last bytea;
BEGIN
  PERFORM semel.check_key(close_scope.scope, coalesce(close_scope.after, ' ')),
    semel.check_outcome('f', '', close_scope.retention_ms, close_scope.tombstone_ms),
    semel.bad('keys_max: ' || coalesce(keys_max::text, 'null') || ' is outside 1..=10000', keys_max NOT BETWEEN 1 AND 10000,
      'choose keys_max within the limit'), semel.durably();
  close_scope.closed := 0;
  -- Locked in the order of ids, and judged again under the lock.
  FOR k IN
    WITH open AS MATERIALIZED (
      SELECT r.id, r.outcome_code, r.outcome, r.state FROM semel.key AS r
      WHERE r.scope = close_scope.scope AND r.id > coalesce(close_scope.after, '')
        AND (r.state IN ('claimed', 'unknown') OR (r.state = 'done' AND r.until > clock_timestamp()))
      ORDER BY r.id LIMIT keys_max FOR UPDATE
    )
    UPDATE semel.key AS r SET state = 'tombstone', outcome_code = NULL, outcome = NULL, until = NULL,
      digest = CASE WHEN open.state = 'done' THEN semel.derive_id(convert_to(open.outcome_code, 'UTF8'), open.outcome)
        ELSE semel.derive_id('f', '') END,
      tombstone_until = greatest(semel.in_ms(retention_ms + tombstone_ms), r.tombstone_until),
      due_at = greatest(semel.in_ms(retention_ms + tombstone_ms), r.tombstone_until, r.withdrawn_until) + interval '60 seconds'
    FROM open WHERE r.scope = close_scope.scope AND r.id = open.id
    RETURNING r.*
  LOOP
    PERFORM semel.key_ended(k);
    close_scope.closed := close_scope.closed + 1;
    last := greatest(last, k.id);
  END LOOP;
  close_scope.after := CASE WHEN close_scope.closed = keys_max THEN last END;
END $$;

-- Where a key stands now; one row, changes and locks nothing. state: absent, claimed, unknown, done, tombstone (it was
-- done, the outcome is no longer kept). until: end of the lease, of the retention, of the tombstone.
CREATE FUNCTION semel.outcome(
  scope bytea, id bytea, OUT state text, OUT outcome_code text, OUT outcome bytea, OUT token bigint,
  OUT attempt integer, OUT until timestamptz, OUT fingerprint bytea
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE k semel.key; now timestamptz;
BEGIN
  PERFORM semel.check_key(outcome.scope, outcome.id);
  SELECT * INTO k FROM semel.key AS r WHERE r.scope = $1 AND r.id = $2;
  now := clock_timestamp();
  IF NOT FOUND OR semel.is_over(k) THEN
    state := 'absent';
    RETURN;
  END IF;
  token := k.token; fingerprint := k.fingerprint; until := k.until;
  IF k.state = 'claimed' AND k.hold AND k.until <= now THEN
    state := 'unknown'; until := NULL; attempt := k.attempt;
  ELSIF k.state = 'done' AND now < k.until THEN
    state := 'done'; outcome_code := k.outcome_code; outcome := k.outcome;
  ELSIF k.state IN ('done', 'tombstone') THEN
    state := 'tombstone'; until := k.tombstone_until;
  ELSE
    state := k.state; attempt := k.attempt;
  END IF;
END $$;
