
-- The outbox in partitions, for those who choose it: SELECT semel.partition_outbox(). A row's partition follows from its
-- event's id, whose first 48 bits are milliseconds where it is a UUIDv7; so one id always falls into one partition, and
-- stays unique by an index. Other ids, and those of a time without a partition, are in the default partition.
CREATE TABLE semel.outbox_partitioning (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  width_ms bigint NOT NULL CHECK (width_ms > 0),
  ahead    integer NOT NULL DEFAULT 3 CHECK (ahead > 0) -- so many are made for the time ahead
);

-- How long each stream's cleaner wants its events to be kept: a partition goes when no stream wants any row of it.
CREATE TABLE semel.outbox_keep (
  stream  text COLLATE "C" PRIMARY KEY,
  keep_ms bigint NOT NULL
);

-- The partitions: whose ids are from first_ms on (NULL: any) and below past_ms (NULL: the default partition).
CREATE FUNCTION semel.outbox_partitions(OUT name text, OUT oid oid, OUT first_ms bigint, OUT past_ms bigint)
RETURNS SETOF record LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relname::text, c.oid,
    ('x' || substr(replace(substring(b.bound FROM 'FROM \(''([0-9a-f-]{36})''\)'), '-', ''), 1, 12))::bit(48)::bigint,
    ('x' || substr(replace(substring(b.bound FROM 'TO \(''([0-9a-f-]{36})''\)'), '-', ''), 1, 12))::bit(48)::bigint
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
  CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bound) b
  WHERE i.inhparent = 'semel.outbox'::regclass ORDER BY 4 NULLS LAST $$;

CREATE FUNCTION semel.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
  AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000::numeric)::bigint $$;

-- Makes the partition of ids from first_ms on (NULL: any) and below past_ms; both NULL: the default one. Attached, so that
-- nobody who writes or reads waits: only for ids that the default partition holds.
CREATE FUNCTION semel.outbox_make_partition(first_ms bigint, past_ms bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part text := CASE WHEN past_ms IS NULL THEN 'outbox_other' WHEN first_ms IS NULL THEN 'outbox_before'
    ELSE to_char(to_timestamp(first_ms / 1000.0) AT TIME ZONE 'UTC', '"outbox_"YYYYMMDD"t"HH24MISSMS') END;
  owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'semel.outbox'::regclass);
BEGIN
  EXECUTE format('CREATE TABLE semel.%I (LIKE semel.outbox INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS
    INCLUDING STORAGE INCLUDING COMPRESSION)', part);
  EXECUTE format('ALTER TABLE semel.%1$I ADD CONSTRAINT %2$I PRIMARY KEY (event_id)', part, part || '_event_id_is_new');
  IF owner <> current_user THEN
    EXECUTE format('ALTER TABLE semel.%I OWNER TO %I', part, owner);
  END IF;
  EXECUTE format('ALTER TABLE semel.outbox ATTACH PARTITION semel.%I ', part) || CASE WHEN past_ms IS NULL THEN 'DEFAULT'
    ELSE format('FOR VALUES FROM (%s) TO (%L)',
      CASE WHEN first_ms IS NULL THEN 'MINVALUE' ELSE quote_literal(rpad(lpad(to_hex(first_ms), 12, '0'), 32, '0')::uuid) END,
      rpad(lpad(to_hex(past_ms), 12, '0'), 32, '0')::uuid) END;
END $$;

-- Makes the partitions of the time ahead that are missing; returns how many it made. Ids of a time that has begun
-- already are in the default partition until the next one begins. Where that holds ids of the time ahead, they stay
-- there, and so do all others of that partition's time.
CREATE FUNCTION semel.outbox_premake() RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
  width bigint;
  until bigint;
  first bigint;
  past bigint;
  made integer := 0;
BEGIN
  LOCK TABLE ONLY semel.outbox IN SHARE UPDATE EXCLUSIVE MODE; -- one at a time
  -- Behind the lock: the outbox may just have been made whole, and there is nothing to make then.
  SELECT p.width_ms, semel.now_ms() + p.ahead * p.width_ms INTO width, until FROM semel.outbox_partitioning p;
  first := greatest((SELECT max(past_ms) FROM semel.outbox_partitions()), (semel.now_ms() / width + 1) * width);
  WHILE first < until LOOP
    past := (first / width + 1) * width;
    BEGIN
      PERFORM semel.outbox_make_partition(first, past);
      made := made + 1;
    EXCEPTION WHEN check_violation OR duplicate_table THEN NULL;
    END;
    first := past;
  END LOOP;
  RETURN made;
END $$;

CREATE FUNCTION semel.partition_refused(problem text, help text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'SM280', MESSAGE = problem, HINT = help || ' (SEM0280)';
END $$;

-- Waits for everybody who uses the outbox, and keeps all out until the transaction ends; whether it is in partitions. What
-- was committed while it waited must be seen by what comes next, or it would be left behind.
CREATE FUNCTION semel.outbox_alone() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    PERFORM semel.partition_refused(format('this transaction is %s, and does not see what is committed while it waits',
      upper(current_setting('transaction_isolation'))), 'call it in one that is READ COMMITTED');
  END IF;
  LOCK TABLE semel.outbox IN ACCESS EXCLUSIVE MODE;
  RETURN (SELECT relkind = 'p' FROM pg_class WHERE oid = 'semel.outbox'::regclass);
END $$;

-- Makes the outbox anew, with all its rows: in partitions of the ids of so much time each, or whole where that is NULL. Numbers,
-- transactions and ids of rows stay, so whoever has read up to somewhere goes on there. Returns how many rows there are.
CREATE FUNCTION semel.outbox_remake(width_ms bigint, rows_max bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old pg_class;
  kept bigint;
  start bigint;
  cols text;
  indexes text[];
  again text[];
  it record;
BEGIN
  SELECT * INTO old FROM pg_class WHERE oid = 'semel.outbox'::regclass;
  kept := (SELECT count(*) FROM (SELECT FROM semel.outbox LIMIT rows_max + 1) o);
  IF kept > rows_max THEN
    PERFORM semel.partition_refused(format('the outbox holds more than %s rows', rows_max),
      'let the relay send and delete them, keep them for less long, or give rows_max and expect all writers to wait');
  END IF;
  IF old.relrowsecurity
    OR EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = old.oid
      OR old.relkind = 'p' AND prrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = old.oid))
    OR old.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = old.oid OR inhrelid = old.oid) THEN
    PERFORM semel.partition_refused('the outbox has policies, is published or is inherited from',
      'take that away before, and put it back afterwards');
  END IF;
  IF width_ms IS NOT NULL AND EXISTS (SELECT FROM pg_index WHERE indrelid = old.oid AND indisunique AND NOT indisprimary
    AND indexrelid <> 'semel.outbox_event_id_is_new'::regclass) THEN
    PERFORM semel.partition_refused('the outbox has a unique index of yours', 'drop it: over partitions it would not be unique');
  END IF;

  -- What comes back: indexes at once, the rest when the rows are there.
  again := ARRAY(SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE t.tgrelid = old.oid AND NOT t.tgisinternal
      ORDER BY t.tgname)
    || ARRAY(SELECT format('ALTER TABLE semel.outbox %s TRIGGER %I', CASE t.tgenabled WHEN 'D' THEN 'DISABLE'
        WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, t.tgname)
      FROM pg_trigger t WHERE t.tgrelid = old.oid AND NOT t.tgisinternal AND t.tgenabled <> 'O')
    || ARRAY(SELECT format('GRANT %s ON semel.outbox TO %s%s', a.privilege_type,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
        CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
      FROM aclexplode(old.relacl) a WHERE a.grantee <> old.relowner)
    || ARRAY(SELECT format('GRANT %s (%I) ON semel.outbox TO %s%s', a.privilege_type, c.attname,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
        CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
      FROM pg_attribute c CROSS JOIN aclexplode(c.attacl) a WHERE c.attrelid = old.oid AND c.attacl IS NOT NULL);
  cols := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = old.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '');
  -- All but those that each form has of its own.
  indexes := ARRAY(SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = old.oid AND NOT i.indisprimary AND c.relname NOT IN ('outbox_event_id_is_new', 'outbox_id'));
  ALTER TABLE semel.outbox RENAME TO outbox_old;
  EXECUTE format('ALTER SEQUENCE %s RENAME TO outbox_old_id_seq', pg_get_serial_sequence('semel.outbox_old', 'id'));
  FOR it IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = old.oid LOOP
    EXECUTE format('ALTER INDEX semel.%I RENAME TO %I', it.relname, 'old_' || left(it.relname, 59));
  END LOOP;

  EXECUTE 'CREATE TABLE semel.outbox (LIKE semel.outbox_old INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY
    INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING COMMENTS)'
    || CASE WHEN width_ms IS NULL THEN '' ELSE ' PARTITION BY RANGE (event_id)' END;
  EXECUTE format('ALTER TABLE semel.outbox OWNER TO %I', pg_get_userbyid(old.relowner));
  IF width_ms IS NULL THEN
    ALTER TABLE semel.outbox ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
    CREATE UNIQUE INDEX outbox_event_id_is_new ON semel.outbox (event_id);
  ELSE
    ALTER TABLE semel.outbox ADD CONSTRAINT outbox_event_id_is_new PRIMARY KEY (event_id);
    CREATE INDEX outbox_id ON semel.outbox (id);
  END IF;
  FOR i IN 1 .. cardinality(indexes) LOOP
    EXECUTE indexes[i];
  END LOOP;
  IF width_ms IS NOT NULL THEN
    start := semel.now_ms() / width_ms * width_ms;
    PERFORM semel.outbox_make_partition(NULL, NULL);
    PERFORM semel.outbox_make_partition(NULL, start);
    PERFORM semel.outbox_make_partition(start, start + width_ms);
    PERFORM semel.outbox_premake();
  END IF;
  EXECUTE format('INSERT INTO semel.outbox (%1$s) OVERRIDING SYSTEM VALUE SELECT %1$s FROM semel.outbox_old', cols);
  PERFORM setval('semel.outbox_id_seq', last_value, is_called) FROM semel.outbox_old_id_seq;
  FOR i IN 1 .. cardinality(again) LOOP
    EXECUTE again[i];
  END LOOP;
  DROP TABLE semel.outbox_old;
  RETURN kept;
END $$;

-- Makes the outbox one in partitions, each of the ids of so much time, so many of them made ahead; or, where it is one, changes
-- both for those that are made from now on. Everybody who writes or reads events waits meanwhile: the kept rows are copied,
-- about 50,000 in a second. Returns how many.
CREATE FUNCTION semel.partition_outbox(width interval DEFAULT '1 hour', rows_max bigint DEFAULT 1000000,
  ahead integer DEFAULT 3) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  ms CONSTANT bigint := extract(epoch FROM width) * 1000;
  parted boolean;
BEGIN
  IF (ms BETWEEN 60000 AND 32 * 86400000::bigint) IS NOT TRUE THEN
    PERFORM semel.partition_refused(format('a width of %s was asked for', width), 'choose one from 1 minute to 32 days');
  END IF;
  IF (ahead BETWEEN 1 AND 100) IS NOT TRUE THEN
    PERFORM semel.partition_refused(format('%s made ahead were asked for', ahead), 'choose from 1 to 100: each costs every look');
  END IF;
  parted := semel.outbox_alone();
  INSERT INTO semel.outbox_partitioning AS p (width_ms, ahead) VALUES (ms, partition_outbox.ahead)
    ON CONFLICT (only_row) DO UPDATE SET width_ms = excluded.width_ms, ahead = excluded.ahead;
  RETURN CASE WHEN parted THEN 0 ELSE semel.outbox_remake(ms, rows_max) END;
END $$;

-- The way back: one table again, with all rows that are kept. Waits and copies as the way there; returns how many rows, 0 where
-- it is whole.
CREATE FUNCTION semel.unpartition_outbox(rows_max bigint DEFAULT 1000000) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE kept bigint := 0;
BEGIN
  IF semel.outbox_alone() THEN
    kept := semel.outbox_remake(NULL, rows_max);
    DELETE FROM semel.outbox_partitioning;
    -- Nobody says it any more: what a stream wanted once must not drop its rows when there are partitions again.
    DELETE FROM semel.outbox_keep;
  END IF;
  RETURN kept;
END $$;
