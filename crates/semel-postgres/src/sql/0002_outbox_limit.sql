
-- How much of a stream may wait before more is refused at enqueue; where this is empty, nothing checks. Set by
-- semel.limit_stream and by relays. A row with an empty stream: streams that nobody has registered are refused.
CREATE TABLE semel.outbox_limit (
  stream      text COLLATE "C" PRIMARY KEY,
  rows_max    bigint CHECK (rows_max BETWEEN 1 AND 10000000),
  age_max_ms  bigint CHECK (age_max_ms BETWEEN 1 AND 31622400000),
  -- What waited when a relay counted it last, each second.
  waiting     bigint NOT NULL DEFAULT 0,
  oldest_at   timestamptz,
  counted_to  bigint NOT NULL DEFAULT 0,
  measured_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- What writers counted where no relay did; the newer of both counts. A row of its own, because a writer holds it until its
-- transaction ends: no relay waits for it.
CREATE TABLE semel.outbox_limit_count (
  stream      text COLLATE "C" PRIMARY KEY,
  waiting     bigint NOT NULL DEFAULT 0,
  oldest_at   timestamptz,
  counted_to  bigint NOT NULL DEFAULT 0,
  measured_at timestamptz NOT NULL DEFAULT 'epoch',
  counted_by  xid8
) WITH (fillfactor = 50);

-- Runs with the rights of whoever installed it: writers need no rights of their own for it.
CREATE FUNCTION semel.outbox_in_limits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l semel.outbox_limit;
  c semel.outbox_limit_count;
BEGIN
  IF EXISTS (SELECT FROM semel.outbox_limit WHERE stream = '')
    AND NOT EXISTS (SELECT FROM semel.outbox_shard WHERE stream = NEW.stream) THEN
    RAISE EXCEPTION USING ERRCODE = 'SM261',
      MESSAGE = format('no relay has registered stream %s, and only registered ones are written to here', NEW.stream),
      HINT = 'correct the name, start its relay first, or SELECT semel.only_known_streams(false) (SEM0261)';
  END IF;
  -- What a relay moves was admitted when it was delayed.
  IF TG_ARGV[0] = 'delayed' OR current_setting('semel.outbox_moving', true) = 'yes' THEN
    RETURN NEW;
  END IF;
  SELECT * INTO l FROM semel.outbox_limit WHERE stream = NEW.stream;
  IF NOT FOUND THEN
    RETURN NEW;
  END IF;
  SELECT * INTO c FROM semel.outbox_limit_count WHERE stream = NEW.stream;
  -- What this transaction counted itself is for others to go by: a refusal would roll the count back, for good.
  IF c.measured_at > l.measured_at AND (c.counted_by = pg_current_xact_id_if_assigned()) IS NOT TRUE THEN
    l.waiting := c.waiting; l.oldest_at := c.oldest_at; l.counted_to := c.counted_to; l.measured_at := c.measured_at;
  END IF;
  IF l.waiting >= l.rows_max THEN
    RAISE EXCEPTION USING ERRCODE = 'SM260',
      MESSAGE = format('stream %s takes no more events now: %s events or more wait, rows_max is %s', l.stream, l.waiting, l.rows_max),
      HINT = 'write again when its relay has caught up (semel outbox why), or raise the limit: semel.limit_stream (SEM0260)';
  ELSIF clock_timestamp() - l.oldest_at > l.age_max_ms * interval '1 ms' THEN
    RAISE EXCEPTION USING ERRCODE = 'SM260',
      MESSAGE = format('stream %s takes no more events now: the oldest event has waited for %s ms, age_max_ms is %s', l.stream,
        (extract(epoch FROM clock_timestamp() - l.oldest_at) * 1000)::bigint, l.age_max_ms),
      HINT = 'write again when its relay has caught up (semel outbox why), or raise the limit: semel.limit_stream (SEM0260)';
  END IF;
  -- Nobody measures: one writer counts what was written since, and those after it go by that; the others go by what is known,
  -- and wait for nobody. Under a snapshot of the transaction's own, a row that was changed since would fail the transaction.
  IF l.measured_at < clock_timestamp() - interval '3 s' AND current_setting('transaction_isolation') = 'read committed'
    AND (c.counted_by = pg_current_xact_id_if_assigned()) IS NOT TRUE THEN
    PERFORM FROM semel.outbox_limit_count WHERE stream = NEW.stream AND measured_at = c.measured_at
      FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE semel.outbox_limit_count u SET waiting = l.waiting + n.waiting, oldest_at = coalesce(l.oldest_at, n.oldest_at),
        counted_to = greatest(l.counted_to, n.last), measured_at = clock_timestamp(), counted_by = pg_current_xact_id()
      FROM (SELECT count(*) AS waiting, min(o.created_at) AS oldest_at, coalesce(max(o.id), 0) AS last
        FROM semel.outbox o WHERE o.id > l.counted_to AND o.stream = NEW.stream) n
      WHERE u.stream = NEW.stream;
    END IF;
  END IF;
  RETURN NEW;
END $$;

-- The triggers are there while there is something to check, so that nothing is paid for otherwise.
CREATE FUNCTION semel.outbox_limits_apply() RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
  wanted boolean := EXISTS (SELECT FROM semel.outbox_limit);
BEGIN
  IF wanted = EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'semel.outbox'::regclass AND tgname = 'outbox_in_limits') THEN
    RETURN;
  ELSIF wanted THEN
    CREATE TRIGGER outbox_in_limits BEFORE INSERT ON semel.outbox
      FOR EACH ROW EXECUTE FUNCTION semel.outbox_in_limits('sent');
    CREATE TRIGGER outbox_in_limits BEFORE INSERT ON semel.outbox_delayed
      FOR EACH ROW EXECUTE FUNCTION semel.outbox_in_limits('delayed');
  ELSE
    DROP TRIGGER outbox_in_limits ON semel.outbox;
    DROP TRIGGER outbox_in_limits ON semel.outbox_delayed;
  END IF;
END $$;

-- Limits what may wait in a stream: so many events, and so old an oldest one; without numbers, no longer. Beyond it an
-- enqueue is refused with SQLSTATE SM260. Makes or drops a trigger where it is the first or last limit, so its caller owns
-- the tables; writers are waited for two seconds (55P03: try again).
CREATE FUNCTION semel.limit_stream(stream text, rows_max bigint DEFAULT NULL, age_max_ms bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
  IF $1 IS NULL OR $1 !~ '^[A-Za-z0-9._-]+$' OR octet_length($1) > 249 THEN
    PERFORM semel.outbox_argument('stream is no name', 'name it as at enqueue: 1 to 249 of a-z A-Z 0-9 . _ -');
  END IF;
  LOCK TABLE semel.outbox_limit IN SHARE ROW EXCLUSIVE MODE;
  IF $2 IS NULL AND $3 IS NULL THEN
    DELETE FROM semel.outbox_limit l WHERE l.stream = $1;
    -- A writer that counts now leaves its row: it is older than what a new limit begins with.
    DELETE FROM semel.outbox_limit_count c WHERE c.stream IN
      (SELECT d.stream FROM semel.outbox_limit_count d WHERE d.stream = $1 FOR UPDATE SKIP LOCKED);
  ELSE
    INSERT INTO semel.outbox_limit AS l (stream, rows_max, age_max_ms, counted_to)
      VALUES ($1, $2, $3, coalesce((SELECT max(id) FROM semel.outbox), 0))
      ON CONFLICT (stream) DO UPDATE SET rows_max = $2, age_max_ms = $3;
    INSERT INTO semel.outbox_limit_count (stream) VALUES ($1) ON CONFLICT (stream) DO NOTHING;
  END IF;
  PERFORM semel.outbox_limits_apply();
END $$;

-- Whether an enqueue into a stream that no relay has registered is refused, with SQLSTATE SM261. As semel.limit_stream.
CREATE FUNCTION semel.only_known_streams(wanted boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
  LOCK TABLE semel.outbox_limit IN SHARE ROW EXCLUSIVE MODE;
  IF $1 THEN
    INSERT INTO semel.outbox_limit (stream) VALUES ('') ON CONFLICT (stream) DO NOTHING;
  ELSE
    DELETE FROM semel.outbox_limit WHERE stream = '';
  END IF;
  PERFORM semel.outbox_limits_apply();
END $$;
