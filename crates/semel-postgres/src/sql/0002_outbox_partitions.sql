
-- The outbox in partitions, for those who choose it: SELECT semel.partition_outbox(). A row's partition follows from its
-- event's id, whose first 48 bits are milliseconds where it is a UUIDv7; so one id always falls into one partition, and
-- stays unique by an index. Other ids, and those of a time without a partition, are in the default partition.
CREATE TABLE semel.outbox_partitioning (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  width_ms bigint NOT NULL CHECK (width_ms > 0)
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
CREATE FUNCTION semel.outbox_premake(ahead integer) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
  width bigint := (SELECT width_ms FROM semel.outbox_partitioning);
  first bigint;
  past bigint;
  made integer := 0;
BEGIN
  LOCK TABLE ONLY semel.outbox IN SHARE UPDATE EXCLUSIVE MODE; -- one at a time
  first := greatest((SELECT max(past_ms) FROM semel.outbox_partitions()), (semel.now_ms() / width + 1) * width);
  WHILE first < semel.now_ms() + ahead * width LOOP
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

-- Makes the outbox one in partitions, each of the ids of so much time; or, where it is one, changes the width of those that
-- are made from now on. Everybody who writes or reads events waits meanwhile: the kept rows are copied, about 50,000 in a
-- second. Returns how many.
CREATE FUNCTION semel.partition_outbox(width interval DEFAULT '1 hour', rows_max bigint DEFAULT 1000000) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  ms CONSTANT bigint := extract(epoch FROM width) * 1000;
  old pg_class;
  kept bigint;
  start bigint;
  cols text;
  indexes text[];
  again text[];
  it record;
BEGIN
  IF ms NOT BETWEEN 60000 AND 32 * 86400000::bigint THEN
    PERFORM semel.partition_refused(format('a width of %s was asked for', width), 'choose one from 1 minute to 32 days');
  END IF;
  LOCK TABLE semel.outbox IN ACCESS EXCLUSIVE MODE;
  SELECT * INTO old FROM pg_class WHERE oid = 'semel.outbox'::regclass;
  INSERT INTO semel.outbox_partitioning (width_ms) VALUES (ms) ON CONFLICT (only_row) DO UPDATE SET width_ms = ms;
  IF old.relkind = 'p' THEN
    RETURN 0;
  END IF;
  kept := (SELECT count(*) FROM (SELECT FROM semel.outbox LIMIT rows_max + 1) o);
  IF kept > rows_max THEN
    PERFORM semel.partition_refused(format('the outbox holds more than %s rows', rows_max),
      'let the relay send and delete them, keep them for less long, or give rows_max and expect all writers to wait');
  END IF;
  IF old.relrowsecurity OR EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = old.oid)
    OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = old.oid OR inhrelid = old.oid) THEN
    PERFORM semel.partition_refused('the outbox has policies, is published or is inherited from',
      'take that away before, and put it back afterwards');
  END IF;
  IF EXISTS (SELECT FROM pg_index WHERE indrelid = old.oid AND indisunique AND NOT indisprimary
    AND indexrelid <> 'semel.outbox_event_id_is_new'::regclass) THEN
    PERFORM semel.partition_refused('the outbox has a unique index of yours', 'drop it: over partitions it would not be unique');
  END IF;

  -- What comes back: indexes at once, the rest when the rows are there.
  again := ARRAY(SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE t.tgrelid = old.oid AND NOT t.tgisinternal
      ORDER BY t.tgname)
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
  indexes := ARRAY(SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE i.indrelid = old.oid AND NOT i.indisunique);
  ALTER TABLE semel.outbox RENAME TO outbox_whole;
  EXECUTE format('ALTER SEQUENCE %s RENAME TO outbox_whole_id_seq', pg_get_serial_sequence('semel.outbox_whole', 'id'));
  FOR it IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = old.oid LOOP
    EXECUTE format('ALTER INDEX semel.%I RENAME TO %I', it.relname, 'whole_' || left(it.relname, 57));
  END LOOP;

  CREATE TABLE semel.outbox (LIKE semel.outbox_whole INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY
    INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING COMMENTS) PARTITION BY RANGE (event_id);
  EXECUTE format('ALTER TABLE semel.outbox OWNER TO %I', pg_get_userbyid(old.relowner));
  ALTER TABLE semel.outbox ADD CONSTRAINT outbox_event_id_is_new PRIMARY KEY (event_id);
  CREATE INDEX outbox_id ON semel.outbox (id);
  FOR i IN 1 .. cardinality(indexes) LOOP
    EXECUTE indexes[i];
  END LOOP;
  start := semel.now_ms() / ms * ms;
  PERFORM semel.outbox_make_partition(NULL, NULL);
  PERFORM semel.outbox_make_partition(NULL, start);
  PERFORM semel.outbox_make_partition(start, start + ms);
  PERFORM semel.outbox_premake(3);
  EXECUTE format('INSERT INTO semel.outbox (%1$s) OVERRIDING SYSTEM VALUE SELECT %1$s FROM semel.outbox_whole', cols);
  PERFORM setval('semel.outbox_id_seq', last_value, is_called) FROM semel.outbox_whole_id_seq;
  FOR i IN 1 .. cardinality(again) LOOP
    EXECUTE again[i];
  END LOOP;
  DROP TABLE semel.outbox_whole;
  RETURN kept;
END $$;
