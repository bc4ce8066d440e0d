-- The slot of an ordering key (or of an event id): the first two bytes of its SHA-256 modulo 4096, as in Rust.
CREATE FUNCTION semel.slot(key bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT ('x' || encode(substring(sha256(key) FROM 1 FOR 2), 'hex'))::bit(16)::integer & 4095 $$;

-- Headers as they are stored: JSON [["name","hexadecimal value"], ...], at most 64 of them, names of a-z A-Z 0-9 - _ .,
-- names and values 16,384 bytes together.
CREATE FUNCTION semel.headers_ok(headers text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT count(*) <= 64
      AND coalesce(bool_and(jsonb_array_length(h) = 2 AND h->>0 ~ '^[A-Za-z0-9._-]+$' AND h->>1 ~ '^([0-9a-f]{2})*$'), true)
      AND coalesce(sum(length(h->>0) + length(h->>1) / 2), 0) <= 16384
    FROM jsonb_array_elements(headers::jsonb) h $$;

-- Microseconds since 1970 of a row's created_at. It cannot fail, so that no row stops a relay: a time that only a table
-- without its constraint can hold (infinity, a year beyond 9999) is read as the nearest one that can be sent.
CREATE FUNCTION semel.created_us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
  AS $$ SELECT (extract(epoch FROM least(greatest(at, timestamptz '1970-01-01 00:00:00+00'),
    timestamptz '9999-12-31 23:59:59.999999+00')) * 1000000::numeric)::bigint $$;

-- Events, written in the business transaction and never changed. Call semel.enqueue, or INSERT yourself:
--   INSERT INTO semel.outbox (topic, type, key, content_type, data) VALUES (...)
-- and leave id, xid, slot and created_at to their defaults. headers = JSON [["name","hexadecimal value"], ...].
-- Events of one key keep their order when writers of that key take turns, for example by a lock on the business row.
CREATE TABLE semel.outbox (
  id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
  -- Who wrote it. The system column xmin is no substitute: it is 32 bits wide and that of a subtransaction.
  xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
  stream       text COLLATE "C" NOT NULL DEFAULT 'default'
               CONSTRAINT stream_is_1_to_249_of_letters_digits_dot_underscore_dash
               CHECK (stream ~ '^[A-Za-z0-9._-]{1,249}$' AND stream NOT IN ('.', '..')),
  slot         smallint NOT NULL GENERATED ALWAYS AS (semel.slot(coalesce(key, uuid_send(event_id)))) STORED,
  event_id     uuid NOT NULL DEFAULT gen_random_uuid(),
  topic        text NOT NULL CONSTRAINT topic_is_1_to_249_of_letters_digits_dot_underscore_dash
               CHECK (topic ~ '^[A-Za-z0-9._-]{1,249}$' AND topic NOT IN ('.', '..')),
  type         text NOT NULL CONSTRAINT type_is_1_to_255_bytes_without_control_characters
               CHECK (octet_length(type) BETWEEN 1 AND 255 AND type !~ '[\u0001-\u001f\u007f-\u009f]'),
  source       text NOT NULL DEFAULT '/semel' CONSTRAINT source_is_1_to_255_bytes_without_control_characters
               CHECK (octet_length(source) BETWEEN 1 AND 255 AND source !~ '[\u0001-\u001f\u007f-\u009f]'),
  key          bytea CONSTRAINT key_is_1_to_1024_bytes CHECK (octet_length(key) BETWEEN 1 AND 1024),
  content_type text CONSTRAINT content_type_is_at_most_255_bytes_without_control_characters
               CHECK (octet_length(content_type) <= 255 AND content_type !~ '[\u0001-\u001f\u007f-\u009f]'),
  headers      text CONSTRAINT headers_are_pairs_at_most_64_of_16384_bytes_in_all
               CHECK (octet_length(headers) <= 65536 AND semel.headers_ok(headers)),
  data         bytea CONSTRAINT data_is_at_most_900000_bytes CHECK (octet_length(data) <= 900000),
  traceparent  text CONSTRAINT traceparent_is_at_most_255_bytes_without_control_characters
               CHECK (octet_length(traceparent) <= 255 AND traceparent !~ '[\u0001-\u001f\u007f-\u009f]'),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp() CONSTRAINT created_at_is_of_the_years_1970_to_9999
               CHECK (created_at >= '1970-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00')
);
-- Both halves of a batch are ranges of it: written since the last look, and open then.
CREATE INDEX outbox_xid ON semel.outbox (xid, id);

-- A row with a foreign transaction id would never be seen, or be taken for sent (rule O9).
CREATE FUNCTION semel.outbox_foreign_xid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'semel.outbox.xid is written by its default; leave the column out' USING ERRCODE = '23514';
END $$;
CREATE TRIGGER outbox_own_xid BEFORE INSERT ON semel.outbox FOR EACH ROW
  WHEN (NEW.xid IS DISTINCT FROM pg_current_xact_id()) EXECUTE FUNCTION semel.outbox_foreign_xid();

-- One row per shard: who owns it, and how far it has got. Often updated: room on its page, no index on what changes.
CREATE TABLE semel.outbox_shard (
  stream        text COLLATE "C" NOT NULL,
  shard         integer NOT NULL,
  slot_first    integer NOT NULL,
  slot_last     integer NOT NULL,
  epoch         bigint NOT NULL DEFAULT 0,
  nonce         bytea,
  owner         text NOT NULL DEFAULT '',
  until         timestamptz NOT NULL DEFAULT '-infinity',
  prev          pg_snapshot NOT NULL DEFAULT '1:1:', -- nothing is visible in it: the first batch holds every row
  open          pg_snapshot,
  last_id       bigint NOT NULL DEFAULT 0,
  batch_no      bigint NOT NULL DEFAULT 0,
  version       bigint NOT NULL DEFAULT 0,
  suspect       bigint,
  takeovers     integer NOT NULL DEFAULT 0,
  seen_batch_no bigint NOT NULL DEFAULT 0,
  seen_last_id  bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (stream, shard)
) WITH (fillfactor = 50);

-- Rows that could not be sent, copied here in the transaction that moves the cursor past them.
CREATE TABLE semel.outbox_exception (
  id           bigint PRIMARY KEY,
  shard        integer NOT NULL,
  kind         text NOT NULL CHECK (kind IN ('parked', 'behind', 'skipped')),
  attempts     bigint NOT NULL,
  reason       text NOT NULL,
  since        timestamptz NOT NULL DEFAULT clock_timestamp(),
  stream       text COLLATE "C" NOT NULL,
  slot         smallint NOT NULL,
  event_id     uuid NOT NULL,
  topic        text NOT NULL,
  type         text NOT NULL,
  source       text NOT NULL,
  key          bytea,
  content_type text,
  headers      text,
  data         bytea,
  traceparent  text,
  created_at   timestamptz NOT NULL
);
CREATE INDEX outbox_exception_stream ON semel.outbox_exception (stream, shard, id);

-- The cluster whose transaction ids the rows carry. On another one (a dump, a logical copy) they mean nothing, so the
-- relay stops until semel.adopt_outbox() was called there.
CREATE TABLE semel.outbox_incarnation (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  system_id bigint NOT NULL
);
INSERT INTO semel.outbox_incarnation (system_id) SELECT system_identifier FROM pg_control_system();

-- After a restore, a copy or an upgrade: makes this cluster the outbox's home. Every row still kept is sent again, in
-- order and with the same event ids. Stop the relays first.
CREATE FUNCTION semel.adopt_outbox() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE n bigint;
BEGIN
  LOCK TABLE semel.outbox IN EXCLUSIVE MODE;
  UPDATE semel.outbox SET xid = pg_current_xact_id();
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE semel.outbox_shard SET prev = '1:1:', open = NULL, last_id = 0, batch_no = batch_no + 1,
    version = version + 1, epoch = epoch + 1, nonce = NULL, owner = '', until = '-infinity', suspect = NULL;
  UPDATE semel.outbox_incarnation SET system_id = (SELECT system_identifier FROM pg_control_system());
  RETURN n;
END $$;

-- Writes an event in the caller's transaction, from any language; returns its id. What can never be sent is refused by
-- a constraint that names the limit. headers: [["name","text"], ...].
CREATE FUNCTION semel.enqueue(
  topic text, type text, data bytea DEFAULT NULL, key bytea DEFAULT NULL, content_type text DEFAULT NULL,
  headers jsonb DEFAULT NULL, event_id uuid DEFAULT NULL, stream text DEFAULT 'default',
  source text DEFAULT '/semel', traceparent text DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  INSERT INTO semel.outbox (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
  VALUES ($1, $2, $3, $4, $5,
    (SELECT json_agg(json_build_array(h.pair->>0, encode(convert_to(h.pair->>1, 'UTF8'), 'hex')) ORDER BY h.n)::text
     FROM jsonb_array_elements($6) WITH ORDINALITY AS h(pair, n)),
    coalesce($7, gen_random_uuid()), $8, $9, $10)
  RETURNING event_id
$$;

-- For writers that lock no row of their own: those of one key take turns until they commit, so that their events are
-- sent in the order of their commits. Call it before semel.enqueue.
CREATE FUNCTION semel.lock_key(key bytea) RETURNS void LANGUAGE sql VOLATILE
  AS $$ SELECT pg_advisory_xact_lock(
    ('x' || encode(substring(sha256('semel.outbox'::bytea || key) FROM 1 FOR 8), 'hex'))::bit(64)::bigint) $$;
