-- The participants' side of sagas: one row per operation of a step, in the transaction of its effect. A compensation
-- that finds no action writes the action's row (origin 'compensation'), which turns the late action away.
CREATE TABLE semel.barrier (
  saga      text COLLATE "C" NOT NULL CHECK (octet_length(saga) BETWEEN 1 AND 255),
  step      text COLLATE "C" NOT NULL CHECK (octet_length(step) BETWEEN 1 AND 100),
  op        text NOT NULL CHECK (op IN ('action', 'compensation')),
  origin    text NOT NULL CHECK (origin IN ('action', 'compensation')),
  epoch     bigint NOT NULL, -- the highest that has called
  outcome   text CHECK (outcome IN ('s', 'r', 'f')), -- null only inside the transaction that runs it
  response  bytea CONSTRAINT response_is_at_most_1048576_bytes CHECK (octet_length(response) <= 1048576),
  not_after timestamptz, -- the latest moment at which its call may still come
  called_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (saga, step, op)
);

-- The barrier, in the participant's transaction, for every language. The rule is that of semel_core::saga::barrier.
-- Answers one row; commit in every case but an error:
--   run              do the work, then call semel.barrier_store
--   replay           it was done: answer `outcome` ('s' succeeded, 'r' refused) with `response`
--   nothing_to_undo  a compensation whose action never happened, and now never will: answer success
--   step_cancelled   its compensation came first: answer 409 with Semel-Outcome: refused
--   stale_epoch      a later owner has called this step: answer 412
--   barrier_lost     the action happened and its row is gone: answer 500
--   running          another transaction ran this step for longer than `wait`: answer 425
--   unfinished       an earlier call committed without semel.barrier_store: a mistake of the participant
-- The coordinator believes what it is told, so the commit must be durable: never with synchronous_commit = off.
-- Under REPEATABLE READ and above a concurrent call ends in 40001: repeat the whole transaction.
CREATE FUNCTION semel.barrier(
  saga text, step text, op text, epoch bigint, action_succeeded boolean DEFAULT false,
  not_after timestamptz DEFAULT NULL, wait text DEFAULT '1s'
) RETURNS TABLE (verdict text, outcome text, response bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  action semel.barrier;
  undo semel.barrier;
  new_action boolean;
  new_undo boolean := false;
  said text;
  answer semel.barrier;
BEGIN
  PERFORM set_config('lock_timeout', wait, true);
  BEGIN
    -- The action's row first, whoever calls: here a call waits for an open one of the same step.
    INSERT INTO semel.barrier (saga, step, op, origin, epoch, not_after) VALUES ($1, $2, 'action', $3, $4, $6)
      ON CONFLICT DO NOTHING;
    new_action := FOUND;
    IF $3 = 'compensation' THEN
      INSERT INTO semel.barrier (saga, step, op, origin, epoch, not_after) VALUES ($1, $2, $3, $3, $4, $6)
        ON CONFLICT DO NOTHING;
      new_undo := FOUND;
    END IF;
    -- New statements: they see what was waited for.
    IF NOT new_action THEN
      SELECT b.* INTO action FROM semel.barrier AS b WHERE b.saga = $1 AND b.step = $2 AND b.op = 'action';
    END IF;
    IF NOT new_undo THEN
      SELECT b.* INTO undo FROM semel.barrier AS b WHERE b.saga = $1 AND b.step = $2 AND b.op = 'compensation';
    END IF;

    IF greatest(action.epoch, undo.epoch) > $4 THEN
      said := 'stale_epoch';
    ELSIF $3 = 'action' AND new_action THEN
      said := 'run';
    ELSIF $3 = 'action' AND action.origin = 'compensation' THEN
      said := 'step_cancelled';
    ELSIF $3 = 'action' OR undo.epoch IS NOT NULL THEN
      -- A duplicate: whatever else is true, it was answered.
      IF $3 = 'action' THEN answer := action; ELSE answer := undo; END IF;
      said := CASE WHEN answer.outcome IS NULL THEN 'unfinished' ELSE 'replay' END;
    ELSIF NOT new_action AND action.outcome IS NULL THEN
      said := 'unfinished';
    ELSIF NOT new_action AND action.outcome <> 'r' AND action.origin = 'action' THEN
      said := 'run';
    ELSIF action_succeeded THEN
      said := 'barrier_lost';
    ELSE
      said := 'nothing_to_undo';
      UPDATE semel.barrier AS b SET outcome = 's', response = ''
        WHERE b.saga = $1 AND b.step = $2 AND (b.op = 'compensation' OR new_action);
    END IF;

    IF said NOT IN ('run', 'nothing_to_undo') THEN
      DELETE FROM semel.barrier AS b WHERE b.saga = $1 AND b.step = $2
        AND (b.op = 'action' AND new_action OR b.op = 'compensation' AND new_undo);
    END IF;
    IF said IN ('run', 'replay', 'nothing_to_undo') THEN
      UPDATE semel.barrier AS b SET epoch = greatest(b.epoch, $4), not_after = greatest(b.not_after, $6)
        WHERE b.saga = $1 AND b.step = $2
          AND (b.epoch < $4 OR $6 > coalesce(b.not_after, timestamptz '-infinity'));
    END IF;
  EXCEPTION WHEN lock_not_available THEN
    said := 'running';
    answer := NULL;
  END;
  RETURN QUERY SELECT said, answer.outcome, answer.response;
END $$;

-- Stores what came of a call to which semel.barrier said `run`, in the same transaction: outcome 's' or 'r'. Before a
-- refusal take back what the work has written: ROLLBACK TO a savepoint made after semel.barrier.
CREATE FUNCTION semel.barrier_store(saga text, step text, op text, outcome text, response bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
  UPDATE semel.barrier AS b SET outcome = $4, response = coalesce($5, '')
    WHERE b.saga = $1 AND b.step = $2 AND b.op = $3 AND b.outcome IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'semel.barrier has not said run to this call in this transaction' USING ERRCODE = '55000';
  END IF;
END $$;
