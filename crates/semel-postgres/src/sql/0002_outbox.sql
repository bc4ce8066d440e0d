-- The functions that a table's checks call are PL/pgSQL: what is written in SQL there, or in the check itself, is parsed and
-- planned anew by each statement that inserts. What a row of the outbox must be, one trigger sees to for the same reason:
-- the server reads the text of a CHECK, of a generated column and of a trigger's WHEN again for each statement.

-- Headers as they are stored: JSON [["name","hexadecimal value"], ...], at most 64 of them, names of a-z A-Z 0-9 - _ .,
-- names and values 16,384 bytes together.
CREATE FUNCTION semel.headers_ok(headers text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT count(*) <= 64
      AND coalesce(bool_and(jsonb_array_length(h) = 2 AND h->>0 ~ '^[A-Za-z0-9._-]+$' AND h->>1 ~ '^([0-9a-f]{2})*$'), true)
      AND coalesce(sum(length(h->>0) + length(h->>1) / 2), 0) <= 16384
    FROM jsonb_array_elements(headers::jsonb) h $$;

-- Refuses what can never be sent, by an error that names the limit as a constraint would (23514). One look at each byte:
-- a counted class such as [a-z]{1,249} costs thirty times as much.
CREATE FUNCTION semel.event_ok(stream text, topic text, type text, source text, key bytea, content_type text, headers text,
  data bytea, traceparent text, created_at timestamptz) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE broken text;
BEGIN
  broken := CASE
    WHEN NOT (octet_length($1) BETWEEN 1 AND 249) OR $1 ~ '[^A-Za-z0-9._-]' OR $1 IN ('.', '..')
      THEN 'stream_is_1_to_249_of_letters_digits_dot_underscore_dash'
    WHEN NOT (octet_length($2) BETWEEN 1 AND 249) OR $2 ~ '[^A-Za-z0-9._-]' OR $2 IN ('.', '..')
      THEN 'topic_is_1_to_249_of_letters_digits_dot_underscore_dash'
    WHEN NOT (octet_length($3) BETWEEN 1 AND 255) OR $3 ~ '[\u0001-\u001f\u007f-\u009f]'
      THEN 'type_is_1_to_255_bytes_without_control_characters'
    WHEN NOT (octet_length($4) BETWEEN 1 AND 255) OR $4 ~ '[\u0001-\u001f\u007f-\u009f]'
      THEN 'source_is_1_to_255_bytes_without_control_characters'
    WHEN NOT (octet_length($5) BETWEEN 1 AND 1024) THEN 'key_is_1_to_1024_bytes'
    WHEN octet_length($6) > 255 OR $6 ~ '[\u0001-\u001f\u007f-\u009f]'
      THEN 'content_type_is_at_most_255_bytes_without_control_characters'
    WHEN octet_length($8) > 900000 THEN 'data_is_at_most_900000_bytes'
    WHEN octet_length($9) > 255 OR $9 ~ '[\u0001-\u001f\u007f-\u009f]'
      THEN 'traceparent_is_at_most_255_bytes_without_control_characters'
    WHEN $10 < '1970-01-01 00:00:00+00' OR $10 >= '10000-01-01 00:00:00+00' THEN 'created_at_is_of_the_years_1970_to_9999'
    WHEN $7 IS NULL THEN NULL
    WHEN octet_length($7) > 65536 OR NOT semel.headers_ok($7) THEN 'headers_are_pairs_at_most_64_of_16384_bytes_in_all'
  END;
  IF broken IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '23514', SCHEMA = 'semel', TABLE = 'outbox', CONSTRAINT = broken,
      MESSAGE = format('new row for relation "outbox" violates check constraint "%s"', broken);
  END IF;
  RETURN true;
END $$;

-- Microseconds since 1970 of a row's created_at. It cannot fail, so that no row stops a relay: a time that only a table
-- without its constraint can hold (infinity, a year beyond 9999) is read as the nearest one that can be sent.
CREATE FUNCTION semel.created_us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
  AS $$ SELECT (extract(epoch FROM least(greatest(at, timestamptz '1970-01-01 00:00:00+00'),
    timestamptz '9999-12-31 23:59:59.999999+00')) * 1000000::numeric)::bigint $$;

-- A new id (UUIDv7, RFC 9562): milliseconds since 1970, then 74 random bits. Ids that grow are cheap to index.
CREATE FUNCTION semel.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
  AS $$ SELECT (lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
    || substr(gen_random_uuid()::text, 16))::uuid $$;

-- Events, written in the business transaction and never changed. Call semel.enqueue, or INSERT yourself:
--   INSERT INTO semel.outbox (topic, type, key, content_type, data) VALUES (...)
-- and leave id, xid, slot and created_at to their defaults. headers = JSON [["name","hexadecimal value"], ...].
-- Events of one key keep their order when writers of that key take turns, for example by a lock on the business row.
CREATE TABLE semel.outbox (
  id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
  -- Who wrote it. The system column xmin is no substitute: it is 32 bits wide and that of a subtransaction.
  xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
  stream       text COLLATE "C" NOT NULL DEFAULT 'default',
  slot         smallint NOT NULL, -- by outbox_row: that of the key, or of the event's id
  event_id     uuid NOT NULL DEFAULT semel.uuid_v7(),
  topic        text NOT NULL,
  type         text NOT NULL,
  source       text NOT NULL DEFAULT '/semel',
  key          bytea,
  content_type text,
  headers      text,
  data         bytea,
  traceparent  text,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Both halves of a batch are ranges of it: written since the last look, and open then.
CREATE INDEX outbox_xid ON semel.outbox (xid, id);
-- The same id twice is refused, or passed over by ON CONFLICT (event_id) DO NOTHING: receivers would take the second for
-- a repetition of the first. Remembered for as long as the row is kept.
CREATE UNIQUE INDEX outbox_event_id_is_new ON semel.outbox (event_id);

-- What every new row is: written under the transaction's own id, for one with a foreign id would never be seen, or be taken
-- for sent (rule O9); such that it can be sent; in its slot. The short condition holds for nearly all events and implies
-- semel.event_ok, which names what is wrong with the others.
CREATE FUNCTION semel.outbox_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE hash bytea;
BEGIN
  IF NEW.xid IS DISTINCT FROM pg_current_xact_id() OR NEW.slot IS NOT NULL THEN
    RAISE EXCEPTION 'semel.outbox.% is written by the outbox; leave the column out',
      CASE WHEN NEW.slot IS NULL THEN 'xid' ELSE 'slot' END USING ERRCODE = '23514';
  END IF;
  IF (NEW.headers IS NULL AND octet_length(NEW.stream) BETWEEN 1 AND 249 AND octet_length(NEW.topic) BETWEEN 1 AND 249
    AND NEW.stream || NEW.topic !~ '[^A-Za-z0-9._-]' AND NEW.stream NOT IN ('.', '..') AND NEW.topic NOT IN ('.', '..')
    AND octet_length(NEW.type) BETWEEN 1 AND 255 AND octet_length(NEW.source) BETWEEN 1 AND 255
    AND coalesce(octet_length(NEW.key), 1) BETWEEN 1 AND 1024
    AND coalesce(octet_length(NEW.content_type), 0) <= 255 AND coalesce(octet_length(NEW.traceparent), 0) <= 255
    AND concat(NEW.type, NEW.source, NEW.content_type, NEW.traceparent) !~ '[\u0001-\u001f\u007f-\u009f]'
    AND coalesce(octet_length(NEW.data), 0) <= 900000
    AND NEW.created_at >= '1970-01-01 00:00:00+00' AND NEW.created_at < '10000-01-01 00:00:00+00') IS NOT TRUE THEN
    PERFORM semel.event_ok(NEW.stream, NEW.topic, NEW.type, NEW.source, NEW.key, NEW.content_type, NEW.headers, NEW.data,
      NEW.traceparent, NEW.created_at);
  END IF;
  -- The slot of an ordering key (or of an event id): the first two bytes of its SHA-256 modulo 4096, as in Rust.
  hash := sha256(coalesce(NEW.key, uuid_send(NEW.event_id)));
  NEW.slot := (get_byte(hash, 0) & 15) << 8 | get_byte(hash, 1);
  RETURN NEW;
END $$;
-- The last one of its kind: triggers come in the order of their names, and yours may change the row before.
CREATE TRIGGER zz_outbox_row BEFORE INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION semel.outbox_row();

-- Events that wait for their time. Moved into the outbox by a relay: there they would hold back what is cleaned in order.
CREATE TABLE semel.outbox_delayed (
  due          timestamptz NOT NULL CONSTRAINT not_before_is_of_the_years_1970_to_9999
               CHECK (due >= '1970-01-01 00:00:00+00' AND due < '10000-01-01 00:00:00+00'),
  -- The order of those that are due at the same time.
  n            bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
  stream       text COLLATE "C" NOT NULL DEFAULT 'default',
  event_id     uuid NOT NULL DEFAULT semel.uuid_v7(),
  topic        text NOT NULL,
  type         text NOT NULL,
  source       text NOT NULL DEFAULT '/semel',
  key          bytea,
  content_type text,
  headers      text,
  data         bytea,
  traceparent  text,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT outbox_delayed_event_id_is_new PRIMARY KEY (event_id),
  CONSTRAINT event_can_be_sent CHECK (semel.event_ok(stream, topic, type, source, key, content_type, headers, data,
    traceparent, created_at))
);
CREATE INDEX outbox_delayed_due ON semel.outbox_delayed (stream, due, n);

-- One row per shard: who owns it, and how far it has got. Often updated: room on its page, no index on what changes.
CREATE TABLE semel.outbox_shard (
  stream        text COLLATE "C" NOT NULL,
  shard         integer NOT NULL,
  slot_first    integer NOT NULL,
  slot_last     integer NOT NULL,
  epoch         bigint NOT NULL DEFAULT 0,
  nonce         bytea,
  relay         bytea, -- who took it last, as in outbox_relay: for sharing, nothing is guarded by it
  owner         text NOT NULL DEFAULT '',
  until         timestamptz NOT NULL DEFAULT '-infinity',
  prev          pg_snapshot NOT NULL DEFAULT '1:1:', -- nothing is visible in it: the first batch holds every row
  open          pg_snapshot,
  last_id       bigint NOT NULL DEFAULT 0,
  batch_no      bigint NOT NULL DEFAULT 0,
  batch         bytea, -- random bits of the batch opened last
  version       bigint NOT NULL DEFAULT 0,
  suspect       bigint,
  log           text, -- where a log holds the cursor: how far it has got at least, or 'rebind'
  takeovers     integer NOT NULL DEFAULT 0,
  seen_batch_no bigint NOT NULL DEFAULT 0,
  seen_last_id  bigint NOT NULL DEFAULT 0,
  map           bigint NOT NULL DEFAULT 0, -- which ranges of slots and which mark a batch was opened under
  note          text, -- what its owner said last: why it sends nothing
  noted_at      timestamptz,
  PRIMARY KEY (stream, shard)
) WITH (fillfactor = 50);

-- Relays that say that they live, each until then: by it they share the shards.
CREATE TABLE semel.outbox_relay (
  stream text COLLATE "C" NOT NULL,
  relay  bytea NOT NULL, -- random bits, drawn when it began
  owner  text NOT NULL,
  until  timestamptz NOT NULL,
  PRIMARY KEY (stream, relay)
) WITH (fillfactor = 50);

-- Streams that are to have another number of shards: every shard is run up to the mark, then the map is replaced.
CREATE TABLE semel.outbox_reshard (
  stream     text COLLATE "C" PRIMARY KEY,
  shards     integer NOT NULL,
  mark       pg_snapshot NOT NULL,
  hold_until timestamptz NOT NULL
);

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
  created_at   timestamptz NOT NULL,
  -- The batch in which it was read last; 0 where it is sent again by a replay.
  batch_no     bigint NOT NULL DEFAULT 0,
  -- What a person asked of it, for its shard's owner to carry out; how often owners took it for that.
  asked        text CHECK (asked IN ('retry', 'drop', 'release')),
  taken        integer NOT NULL DEFAULT 0,
  edits        integer NOT NULL DEFAULT 0
);
CREATE INDEX outbox_exception_stream ON semel.outbox_exception (stream, shard, id);
CREATE INDEX outbox_exception_list ON semel.outbox_exception (stream, shard, key, id);
CREATE INDEX outbox_exception_asked ON semel.outbox_exception (stream, shard, id) WHERE asked IS NOT NULL;

-- Who changed what at the operator's desk, and why; the event as it was before an edit or a drop, as JSON. Kept until
-- somebody deletes it.
CREATE TABLE semel.outbox_desk_log (
  entry    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  "by"     text NOT NULL,
  why      text NOT NULL,
  action   text NOT NULL,
  stream   text NOT NULL,
  "row"    bigint NOT NULL,
  event_id uuid NOT NULL,
  before   text
);
CREATE INDEX outbox_desk_log_row ON semel.outbox_desk_log ("row");

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
  LOCK TABLE semel.outbox_shard IN EXCLUSIVE MODE; -- their map may be just being replaced
  UPDATE semel.outbox SET xid = pg_current_xact_id();
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE semel.outbox_shard SET prev = '1:1:', open = NULL, last_id = 0,
    -- Above all that was given out before a restore: places of events among those of their key never go back.
    batch_no = greatest(batch_no + 1, semel.created_us(clock_timestamp())),
    version = version + 1, epoch = epoch + 1, nonce = NULL, owner = '', until = '-infinity', suspect = NULL,
    log = CASE WHEN log IS NULL THEN NULL ELSE 'rebind' END;
  -- A mark of the former home is not used: the next one is set when this one has rested.
  UPDATE semel.outbox_reshard SET hold_until = least(hold_until, clock_timestamp());
  UPDATE semel.outbox_incarnation SET system_id = (SELECT system_identifier FROM pg_control_system());
  RETURN n;
END $$;

-- For writers that lock no row of their own: those of one key take turns until they commit, so that their events are
-- sent in the order of their commits. Call it before semel.enqueue.
CREATE FUNCTION semel.lock_key(key bytea) RETURNS void LANGUAGE sql VOLATILE
  AS $$ SELECT pg_advisory_xact_lock(
    ('x' || encode(substring(sha256('semel.outbox'::bytea || key) FROM 1 FOR 8), 'hex'))::bit(64)::bigint) $$;
