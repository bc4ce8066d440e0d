-- Events, written in the business transaction and never changed. From any language a plain INSERT is enough:
--   INSERT INTO semel_outbox (topic, type, `key`, content_type, data) VALUES (...)
-- and leave id, slot, data_bytes and created_at to the server. headers = JSON [["name","hexadecimal value"], ...];
-- event_id = the 16 bytes of a UUID. An id of your own choice could lie below a cursor, and its event would never be sent.
-- Events of one key keep their order when writers of that key take turns, for example by a lock on the business row.
-- Each statement may be run again.
CREATE TABLE IF NOT EXISTS semel_outbox (
  id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  -- A row without stream, topic, type, key and data, whose event_id begins with 'semel', is nobody's: it keeps an id from
  -- being used, or is the one that semel_outbox_home names.
  stream       VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'default',
  event_id     VARBINARY(16) NOT NULL DEFAULT (UNHEX(REPLACE(UUID(), '-', ''))),
  topic        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  type         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '/semel',
  `key`        VARBINARY(1024),
  content_type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  headers      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  data         LONGBLOB,
  traceparent  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  -- Microseconds since 1970 in UTC.
  created_at   BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
  -- The first two bytes of the SHA-256 of the key (or of the event id where there is none) modulo 4096.
  slot         SMALLINT AS (CONV(LEFT(SHA2(COALESCE(`key`, event_id), 256), 4), 16, 10) & 4095) STORED,
  data_bytes   INT AS (COALESCE(OCTET_LENGTH(data), 0)) STORED,
  CONSTRAINT stream_is_1_to_249_of_letters_digits_dot_underscore_dash
    CHECK (stream REGEXP '^[A-Za-z0-9._-]{1,249}$' AND stream NOT IN ('.', '..')
      OR stream = '' AND topic = '' AND type = '' AND `key` IS NULL AND data IS NULL AND LEFT(event_id, 5) = x'73656d656c'),
  CONSTRAINT event_id_is_16_bytes CHECK (OCTET_LENGTH(event_id) = 16),
  -- The same id twice is refused (1062), for receivers would take the second for a repetition of the first; or passed over by
  --   ON DUPLICATE KEY UPDATE event_id = IF(semel_outbox.event_id = VALUES(event_id), semel_outbox.event_id, '')
  -- Never by INSERT IGNORE or `id = id`: those take a number that was filled meanwhile for this, too, and lose the event.
  -- Remembered for as long as the row is kept. Ids that grow (UUIDv7) cost little here.
  UNIQUE KEY semel_outbox_event_id (event_id),
  CONSTRAINT topic_is_1_to_249_of_letters_digits_dot_underscore_dash
    CHECK (topic REGEXP '^[A-Za-z0-9._-]{1,249}$' AND topic NOT IN ('.', '..') OR topic = '' AND stream = ''),
  CONSTRAINT type_is_1_to_255_bytes_without_control_characters
    CHECK (OCTET_LENGTH(type) BETWEEN 1 AND 255 AND type NOT REGEXP '[[:cntrl:]]' OR type = '' AND stream = ''),
  CONSTRAINT source_is_1_to_255_bytes_without_control_characters
    CHECK (OCTET_LENGTH(source) BETWEEN 1 AND 255 AND source NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT key_is_1_to_1024_bytes CHECK (OCTET_LENGTH(`key`) BETWEEN 1 AND 1024),
  CONSTRAINT content_type_is_at_most_255_bytes_without_control_characters
    CHECK (OCTET_LENGTH(content_type) <= 255 AND content_type NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT headers_are_pairs_at_most_64_of_16384_bytes_in_all
    CHECK (headers IS NULL OR OCTET_LENGTH(headers) <= 65536 AND CASE
      WHEN headers REGEXP '^\\[( ?\\[ ?"[A-Za-z0-9._-]+" ?, ?"([0-9a-f][0-9a-f])*" ?\\] ?,?)*\\]$'
      THEN JSON_VALID(headers) AND JSON_LENGTH(headers) <= 64 ELSE FALSE END),
  CONSTRAINT data_is_at_most_900000_bytes CHECK (OCTET_LENGTH(data) <= 900000),
  CONSTRAINT traceparent_is_at_most_255_bytes_without_control_characters
    CHECK (OCTET_LENGTH(traceparent) <= 255 AND traceparent NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT created_at_is_of_the_years_1970_to_9999 CHECK (created_at BETWEEN 0 AND 253402300799999999)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Names a row of semel_outbox that is never removed: where it is gone, the table was emptied and its ids may begin anew.
CREATE TABLE IF NOT EXISTS semel_outbox_home (
  one    TINYINT NOT NULL PRIMARY KEY,
  row_id BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_outbox (stream, event_id, topic, type)
  SELECT '', CONCAT(x'73656d656c000001', UNHEX(LPAD(HEX(UUID_SHORT()), 16, '0'))), '', '' FROM DUAL
  WHERE NOT EXISTS (SELECT 1 FROM semel_outbox_home);
INSERT INTO semel_outbox_home (one, row_id)
  SELECT 1, MAX(id) FROM semel_outbox WHERE stream = '' HAVING MAX(id) IS NOT NULL
  ON DUPLICATE KEY UPDATE row_id = semel_outbox_home.row_id;

-- One row per shard: who owns it, and how far it has got. A mark is the largest id that was visible, and below it those
-- that were not: '900' or '900:17,20-25'. Times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS semel_outbox_shard (
  stream        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  shard         SMALLINT NOT NULL,
  slot_first    SMALLINT NOT NULL,
  slot_last     SMALLINT NOT NULL,
  epoch         BIGINT NOT NULL DEFAULT 0,
  nonce         VARBINARY(16),
  relay         VARBINARY(16), -- who took it last, as in semel_outbox_relay: for sharing, nothing is guarded by it
  owner         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  until_us      BIGINT NOT NULL DEFAULT 0,
  prev_mark     MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- '0': the first batch holds every row
  open_mark     MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin,
  last_id       BIGINT NOT NULL DEFAULT 0,
  batch_no      BIGINT NOT NULL DEFAULT 0,
  batch         VARBINARY(16), -- random bits of the batch opened last
  version       BIGINT NOT NULL DEFAULT 0,
  map           BIGINT NOT NULL DEFAULT 0, -- counted up with each map of the stream's shards, and each mark for another one
  suspect       BIGINT,
  -- where a log holds the cursor: how far it has got at least, or 'rebind'
  log           VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin,
  takeovers     INT NOT NULL DEFAULT 0,
  seen_batch_no BIGINT NOT NULL DEFAULT 0,
  seen_last_id  BIGINT NOT NULL DEFAULT 0,
  note          TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, -- why its owner sends nothing; it stays when that dies
  noted_us      BIGINT,
  PRIMARY KEY (stream, shard)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Relays that say that they live, each until then: by it they share the shards.
CREATE TABLE IF NOT EXISTS semel_outbox_relay (
  stream   VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  relay    VARBINARY(16) NOT NULL, -- random bits, drawn when it began
  owner    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  until_us BIGINT NOT NULL,
  PRIMARY KEY (stream, relay)
) ENGINE = InnoDB;

-- Streams that are to have another number of shards. All shards are run up to the mark, which is a union of theirs: no batch
-- opens beyond it while it holds, and when all are there the map is replaced.
CREATE TABLE IF NOT EXISTS semel_outbox_reshard (
  stream        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  shards        SMALLINT NOT NULL,
  mark          MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  hold_until_us BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Rows that could not be sent, copied here in the transaction that moves the cursor past them.
CREATE TABLE IF NOT EXISTS semel_outbox_exception (
  id           BIGINT NOT NULL PRIMARY KEY,
  shard        SMALLINT NOT NULL,
  kind         VARCHAR(7) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  attempts     BIGINT NOT NULL,
  reason       MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  since_us     BIGINT NOT NULL,
  stream       VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  slot         SMALLINT NOT NULL,
  event_id     VARBINARY(16) NOT NULL,
  topic        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  type         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `key`        VARBINARY(1024),
  content_type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  headers      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  data         LONGBLOB,
  traceparent  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  created_at   BIGINT NOT NULL,
  -- What a person asked of it, for its shard's owner to carry out; how often owners took it for that.
  asked        VARCHAR(7) CHARACTER SET ascii COLLATE ascii_bin,
  taken        BIGINT NOT NULL DEFAULT 0,
  edits        BIGINT NOT NULL DEFAULT 0,
  -- The batch in which it was read last; 0 where it is sent again by a replay.
  batch_no     BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT semel_outbox_exception_kind CHECK (kind IN ('parked', 'behind', 'skipped')),
  CONSTRAINT semel_outbox_exception_asked CHECK (asked IN ('retry', 'drop', 'release')),
  KEY semel_outbox_exception_stream (stream, shard, id),
  KEY semel_outbox_exception_list (stream, shard, `key`, id),
  KEY semel_outbox_exception_marks (stream, shard, asked, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who changed what at the operator's desk, and why; the event as it was before an edit or a drop, as JSON. Kept until
-- somebody deletes it.
CREATE TABLE IF NOT EXISTS semel_outbox_desk_log (
  entry    BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at_us    BIGINT NOT NULL,
  `by`     TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  why      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  action   VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  stream   VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `row`    BIGINT NOT NULL,
  event_id VARBINARY(16) NOT NULL,
  `before` MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  KEY semel_outbox_desk_log_row (`row`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- For writers that lock no row of their own: those of one key take turns until they commit, so that their events are
-- sent in the order of their commits. Before the insert:
--   SELECT slot FROM semel_outbox_lock WHERE slot = CONV(LEFT(SHA2(?, 256), 4), 16, 10) & 4095 FOR UPDATE
-- Those from 4096 are for relays that move delayed events.
CREATE TABLE IF NOT EXISTS semel_outbox_lock (
  slot SMALLINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;
INSERT INTO semel_outbox_lock (slot)
  SELECT a.n + 16 * b.n + 256 * c.n FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15
      UNION ALL SELECT 16) AS c
  ON DUPLICATE KEY UPDATE semel_outbox_lock.slot = semel_outbox_lock.slot;

-- Events that wait for their time (due_us: microseconds since 1970 in UTC). A relay moves them into semel_outbox when it has
-- come, with the limits of that table, which are checked here already.
CREATE TABLE IF NOT EXISTS semel_outbox_delayed (
  n            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  due_us       BIGINT NOT NULL,
  stream       VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'default',
  event_id     VARBINARY(16) NOT NULL DEFAULT (UNHEX(REPLACE(UUID(), '-', ''))),
  topic        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  type         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '/semel',
  `key`        VARBINARY(1024),
  content_type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  headers      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  data         LONGBLOB,
  traceparent  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  -- The names of constraints are the schema's on MySQL, so these cannot be those of semel_outbox.
  CONSTRAINT delayed_due_us_is_of_the_years_1970_to_9999 CHECK (due_us BETWEEN 0 AND 253402300799999999),
  CONSTRAINT delayed_event_id_is_16_bytes CHECK (OCTET_LENGTH(event_id) = 16),
  CONSTRAINT delayed_stream_is_1_to_249_letters_digits_dot_underscore_dash
    CHECK (stream REGEXP '^[A-Za-z0-9._-]{1,249}$' AND stream NOT IN ('.', '..')),
  CONSTRAINT delayed_topic_is_1_to_249_letters_digits_dot_underscore_dash
    CHECK (topic REGEXP '^[A-Za-z0-9._-]{1,249}$' AND topic NOT IN ('.', '..')),
  CONSTRAINT delayed_type_is_1_to_255_bytes_without_control_characters
    CHECK (OCTET_LENGTH(type) BETWEEN 1 AND 255 AND type NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT delayed_source_is_1_to_255_bytes_no_control_characters
    CHECK (OCTET_LENGTH(source) BETWEEN 1 AND 255 AND source NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT delayed_key_is_1_to_1024_bytes CHECK (OCTET_LENGTH(`key`) BETWEEN 1 AND 1024),
  CONSTRAINT delayed_content_type_is_at_most_255_bytes_no_control_characters
    CHECK (OCTET_LENGTH(content_type) <= 255 AND content_type NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT delayed_headers_are_pairs_at_most_64_of_16384_bytes_in_all
    CHECK (headers IS NULL OR OCTET_LENGTH(headers) <= 65536 AND CASE
      WHEN headers REGEXP '^\\[( ?\\[ ?"[A-Za-z0-9._-]+" ?, ?"([0-9a-f][0-9a-f])*" ?\\] ?,?)*\\]$'
      THEN JSON_VALID(headers) AND JSON_LENGTH(headers) <= 64 ELSE FALSE END),
  CONSTRAINT delayed_data_is_at_most_900000_bytes CHECK (OCTET_LENGTH(data) <= 900000),
  CONSTRAINT delayed_traceparent_is_at_most_255_bytes_no_control_characters
    CHECK (OCTET_LENGTH(traceparent) <= 255 AND traceparent NOT REGEXP '[[:cntrl:]]'),
  UNIQUE KEY semel_outbox_event_id_delayed (event_id),
  KEY semel_outbox_delayed_due (stream, due_us, n)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
