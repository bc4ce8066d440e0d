-- Prepares the statements of transact_once in this session, where they and the tables of keys are not there yet. A mark is
-- a plain INSERT: who meets a row hears of it by the primary key's 23505.
DO $prepare$ BEGIN
  IF pg_catalog.to_regclass('semel.key') IS NULL THEN
    RETURN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements AS p WHERE p.name OPERATOR(pg_catalog.=) 'semel_mark') THEN
    EXECUTE $$ PREPARE semel_mark(bytea, bytea, bytea, bytea, text, bytea, bigint, bigint) AS
      INSERT INTO semel.key AS k (scope, id, state, fingerprint, token, nonce, attempt, until, tombstone_until, due_at,
        outcome_code, outcome)
      VALUES ($1, $2, 'done', $3, pg_catalog.nextval('semel.token'::pg_catalog.regclass), $4, 1, semel.in_ms($7),
        semel.in_ms($7 OPERATOR(pg_catalog.+) $8), semel.in_ms($7), $5, $6)
      RETURNING CASE WHEN semel.drawn_long_ago(k.until, $7) THEN semel.token_too_old() END $$;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements AS p WHERE p.name OPERATOR(pg_catalog.=) 'semel_end') THEN
    EXECUTE $$ PREPARE semel_end(bytea, bytea, bytea, bytea, text) AS
      WITH ended AS (
        UPDATE semel.key AS k SET outcome_code = $5, outcome = $4
        WHERE k.scope OPERATOR(pg_catalog.=) $1 AND k.id OPERATOR(pg_catalog.=) $2 AND k.nonce OPERATOR(pg_catalog.=) $3
          AND k.state OPERATOR(pg_catalog.=) 'done' AND k.outcome_code OPERATOR(pg_catalog.=) 'f'
        RETURNING 1
      )
      SELECT CASE WHEN NOT EXISTS (SELECT FROM ended) THEN semel.not_marked('nonce') END $$;
  END IF;
END $prepare$
