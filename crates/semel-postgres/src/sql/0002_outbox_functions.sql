
-- Headers [["name","text"], ...] as the table holds them.
CREATE FUNCTION semel.headers_of(headers jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT json_agg(json_build_array(h.pair->>0, encode(convert_to(h.pair->>1, 'UTF8'), 'hex')) ORDER BY h.n)::text
  FROM jsonb_array_elements($1) WITH ORDINALITY AS h(pair, n) $$;

-- Writes an event in the caller's transaction, from any language; returns its id. What can never be sent is refused by
-- a constraint that names the limit. headers: [["name","text"], ...]. An id that was enqueued before is refused (23505,
-- outbox_event_id_is_new); with repeated => 'ignore' nothing is written then. With not_before the event waits until then,
-- and can be taken back by semel.cancel_delayed.
CREATE FUNCTION semel.enqueue(
  topic text, type text, data bytea DEFAULT NULL, key bytea DEFAULT NULL, content_type text DEFAULT NULL,
  headers jsonb DEFAULT NULL, event_id uuid DEFAULT NULL, stream text DEFAULT 'default',
  source text DEFAULT '/semel', traceparent text DEFAULT NULL, repeated text DEFAULT 'refuse',
  not_before timestamptz DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  given uuid := coalesce($7, semel.uuid_v7());
BEGIN
  IF $12 IS NOT NULL THEN
    INSERT INTO semel.outbox_delayed
        (due, topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
      SELECT $12, $1, $2, $3, $4, $5, semel.headers_of($6), given, $8, $9, $10
      WHERE NOT EXISTS (SELECT FROM semel.outbox o WHERE o.event_id = given)
      ON CONFLICT (event_id) DO NOTHING;
    IF NOT FOUND AND $11 IS DISTINCT FROM 'ignore' THEN
      RAISE EXCEPTION USING ERRCODE = '23505', SCHEMA = 'semel', TABLE = 'outbox_delayed',
        CONSTRAINT = 'outbox_event_id_is_new', DETAIL = format('Key (event_id)=(%s) already exists.', given),
        MESSAGE = 'duplicate key value violates unique constraint "outbox_event_id_is_new"';
    END IF;
  ELSIF $11 = 'refuse' THEN
    INSERT INTO semel.outbox (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
      VALUES ($1, $2, $3, $4, $5, semel.headers_of($6), given, $8, $9, $10);
  ELSIF $11 = 'ignore' THEN
    INSERT INTO semel.outbox (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
      VALUES ($1, $2, $3, $4, $5, semel.headers_of($6), given, $8, $9, $10) ON CONFLICT (event_id) DO NOTHING;
  ELSE
    PERFORM semel.outbox_argument(format('repeated is %L', $11), 'say ''refuse'' or ''ignore''');
  END IF;
  RETURN given;
END $$;

-- Takes an event back that waits for its time; whether it still waited: then, once you commit, it will never be sent.
CREATE FUNCTION semel.cancel_delayed(event_id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM semel.outbox_delayed d WHERE d.event_id = $1;
  RETURN FOUND;
END $$;

CREATE FUNCTION semel.outbox_argument(problem text, help text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'SM210', MESSAGE = problem, HINT = help || ' (SEM0210)';
END $$;

-- Writes events in order, in one statement; returns their ids in that order. Each argument is an array with one entry per
-- event, or with one entry that holds for all; what is left out has the default of semel.enqueue. Every event is
-- written, or the statement fails; with repeated => 'ignore' events whose id was enqueued before are passed over, and
-- only the ids that were written are returned. Events whose not_before is not null wait until then.
CREATE FUNCTION semel.enqueue_many(
  topic text[], type text[], data bytea[] DEFAULT NULL, key bytea[] DEFAULT NULL, content_type text[] DEFAULT NULL,
  headers jsonb[] DEFAULT NULL, event_id uuid[] DEFAULT NULL, stream text[] DEFAULT '{default}',
  source text[] DEFAULT '{/semel}', traceparent text[] DEFAULT NULL, repeated text DEFAULT 'refuse',
  not_before timestamptz[] DEFAULT NULL
) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  -- Empty arrays say that there are no events, absent ones nothing.
  lengths integer[] := array_remove(ARRAY[cardinality($1), cardinality($2), cardinality($3), cardinality($4),
    cardinality($5), cardinality($6), cardinality($7), cardinality($8), cardinality($9), cardinality($10), cardinality($12)],
    NULL);
  n integer := (SELECT CASE WHEN 0 = ANY (lengths) THEN 0 ELSE max(l) END FROM unnest(lengths) l);
  wrong integer := (SELECT min(l) FROM unnest(lengths) l WHERE l NOT IN (0, 1, n));
  written uuid[];
  taken uuid;
BEGIN
  IF wrong IS NOT NULL THEN
    PERFORM semel.outbox_argument(format('one array has %s entries, another %s', wrong, n),
      'give each array one entry per event, or one for all');
  END IF;
  -- What the caller sets, and no more: a row of an array that has one entry is that entry.
  IF $12 IS NOT NULL AND $11 IN ('refuse', 'ignore') THEN
    WITH given AS MATERIALIZED (
      SELECT i AS n, $12[least(i, cardinality($12))] AS due, $1[least(i, cardinality($1))] AS topic,
        $2[least(i, cardinality($2))] AS type, $3[least(i, cardinality($3))] AS data, $4[least(i, cardinality($4))] AS key,
        $5[least(i, cardinality($5))] AS content_type, semel.headers_of($6[least(i, cardinality($6))]) AS headers,
        coalesce($7[least(i, cardinality($7))], semel.uuid_v7()) AS event_id, $8[least(i, cardinality($8))] AS stream,
        $9[least(i, cardinality($9))] AS source, $10[least(i, cardinality($10))] AS traceparent
      FROM generate_series(1, n) i
    ), later AS (
      INSERT INTO semel.outbox_delayed
          (due, topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
        SELECT g.due, g.topic, g.type, g.data, g.key, g.content_type, g.headers, g.event_id, g.stream, g.source, g.traceparent
        FROM given g WHERE g.due IS NOT NULL AND NOT EXISTS (SELECT FROM semel.outbox o WHERE o.event_id = g.event_id)
        ORDER BY g.n ON CONFLICT (event_id) DO NOTHING RETURNING event_id
    ), at_once AS (
      INSERT INTO semel.outbox (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
        SELECT g.topic, g.type, g.data, g.key, g.content_type, g.headers, g.event_id, g.stream, g.source, g.traceparent
        FROM given g WHERE g.due IS NULL ORDER BY g.n ON CONFLICT (event_id) DO NOTHING RETURNING event_id
    )
    SELECT array_agg(w.event_id ORDER BY w.n) INTO written FROM (
      SELECT DISTINCT ON (g.event_id) g.event_id, g.n FROM given g
        JOIN (SELECT l.event_id FROM later l UNION ALL SELECT a.event_id FROM at_once a) w ON w.event_id = g.event_id
        ORDER BY g.event_id, g.n) w;
    IF $11 = 'refuse' AND coalesce(cardinality(written), 0) < n THEN
      taken := coalesce((SELECT min(i::text)::uuid FROM unnest($7) i WHERE i <> ALL (coalesce(written, '{}'))),
        (SELECT min(i::text)::uuid FROM (SELECT i FROM unnest($7) i GROUP BY i HAVING count(*) > 1) twice));
      RAISE EXCEPTION USING ERRCODE = '23505', SCHEMA = 'semel', TABLE = 'outbox_delayed',
        CONSTRAINT = 'outbox_event_id_is_new', DETAIL = format('Key (event_id)=(%s) already exists.', coalesce(taken, $7[1])),
        MESSAGE = 'duplicate key value violates unique constraint "outbox_event_id_is_new"';
    END IF;
    RETURN QUERY SELECT unnest(written);
  ELSIF $11 = 'refuse' THEN
    RETURN QUERY INSERT INTO semel.outbox
        (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
      SELECT $1[least(i, cardinality($1))], $2[least(i, cardinality($2))], $3[least(i, cardinality($3))],
        $4[least(i, cardinality($4))], $5[least(i, cardinality($5))], semel.headers_of($6[least(i, cardinality($6))]),
        coalesce($7[least(i, cardinality($7))], semel.uuid_v7()), $8[least(i, cardinality($8))],
        $9[least(i, cardinality($9))], $10[least(i, cardinality($10))]
      FROM generate_series(1, n) i ORDER BY i RETURNING event_id;
  ELSIF $11 = 'ignore' THEN
    RETURN QUERY INSERT INTO semel.outbox
        (topic, type, data, key, content_type, headers, event_id, stream, source, traceparent)
      SELECT $1[least(i, cardinality($1))], $2[least(i, cardinality($2))], $3[least(i, cardinality($3))],
        $4[least(i, cardinality($4))], $5[least(i, cardinality($5))], semel.headers_of($6[least(i, cardinality($6))]),
        coalesce($7[least(i, cardinality($7))], semel.uuid_v7()), $8[least(i, cardinality($8))],
        $9[least(i, cardinality($9))], $10[least(i, cardinality($10))]
      FROM generate_series(1, n) i ORDER BY i ON CONFLICT (event_id) DO NOTHING RETURNING event_id;
  ELSE
    PERFORM semel.outbox_argument(format('repeated is %L', $11), 'say ''refuse'' or ''ignore''');
  END IF;
END $$;

-- The same with one JSON array, for languages whose drivers know no arrays:
--   [{"topic": "orders", "type": "order.placed", "key": "order-7", "data": "text", "content_type": "text/plain"}, ...]
-- Names as the arguments of semel.enqueue. data and key are text in UTF-8; for other bytes data_base64 and key_base64.
-- Without data and data_base64 (or with null) the event is a tombstone. not_before is a time with its zone, as ISO 8601.
CREATE FUNCTION semel.enqueue_many(events jsonb, repeated text DEFAULT 'refuse')
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  unknown text := (SELECT min(k) FROM jsonb_array_elements($1) e, jsonb_object_keys(e) k WHERE k NOT IN ('topic', 'type',
    'data', 'data_base64', 'key', 'key_base64', 'content_type', 'headers', 'event_id', 'stream', 'source', 'traceparent',
    'not_before'));
  nested text := (SELECT min(k) FROM jsonb_array_elements($1) e, jsonb_each(e) AS m(k, v)
    WHERE k <> 'headers' AND jsonb_typeof(v) NOT IN ('string', 'null'));
BEGIN
  IF unknown IS NOT NULL THEN
    PERFORM semel.outbox_argument(format('an event has a field %L', unknown), 'see docs/events.md for their names');
  END IF;
  IF nested IS NOT NULL THEN
    PERFORM semel.outbox_argument(format('%s is no text', nested), 'write it as a JSON string, so that its bytes are yours');
  END IF;
  RETURN QUERY SELECT semel.enqueue_many(array_agg(e->>'topic' ORDER BY n), array_agg(e->>'type' ORDER BY n),
      array_agg(coalesce(decode(e->>'data_base64', 'base64'), convert_to(e->>'data', 'UTF8')) ORDER BY n),
      array_agg(coalesce(decode(e->>'key_base64', 'base64'), convert_to(e->>'key', 'UTF8')) ORDER BY n),
      array_agg(e->>'content_type' ORDER BY n), array_agg(nullif(e->'headers', 'null') ORDER BY n),
      array_agg((e->>'event_id')::uuid ORDER BY n), array_agg(coalesce(e->>'stream', 'default') ORDER BY n),
      array_agg(coalesce(e->>'source', '/semel') ORDER BY n), array_agg(e->>'traceparent' ORDER BY n), $2,
      CASE WHEN bool_or(e->>'not_before' IS NOT NULL) THEN array_agg((e->>'not_before')::timestamptz ORDER BY n) END)
    FROM jsonb_array_elements($1) WITH ORDINALITY AS events(e, n) HAVING count(*) > 0;
END $$;
