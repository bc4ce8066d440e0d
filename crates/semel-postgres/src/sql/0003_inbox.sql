-- Marks: message ids that a consumer has handled.
CREATE TABLE semel.inbox (
  scope bytea NOT NULL,
  id bytea NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  keep_until timestamptz NOT NULL,
  PRIMARY KEY (scope, id)
);
-- Rows come in the order of their time, so a block-range index finds the old ones and costs next to nothing per row.
CREATE INDEX inbox_keep_until ON semel.inbox USING brin (keep_until) WITH (autosummarize = on);

-- Positions: up to where a partition has been read. A row is never deleted, so that its epoch only grows. Room is left
-- on each page for the new versions of its few, often updated rows; no index is on what changes.
CREATE TABLE semel.position (
  consumer text COLLATE "C" NOT NULL,
  topic_id uuid NOT NULL,
  part integer NOT NULL,
  topic text NOT NULL, -- for people
  next_offset bigint NOT NULL,
  epoch bigint NOT NULL,
  owner bytea NOT NULL CHECK (octet_length(owner) = 16),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, topic_id, part)
) WITH (fillfactor = 50);

-- Ordering keys with parked messages: later messages of such a key are parked too.
CREATE TABLE semel.parked_key (
  scope bytea NOT NULL,
  key bytea NOT NULL,
  PRIMARY KEY (scope, key)
);

-- Parked messages: full copies, in the order they were parked.
CREATE TABLE semel.parked (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  scope bytea NOT NULL,
  id bytea NOT NULL,
  key bytea,
  topic text NOT NULL,
  part integer NOT NULL,
  at_offset bigint NOT NULL,
  headers bytea NOT NULL, -- JSON: [["name", "hex" or null], ...]
  data bytea,
  reason text NOT NULL,
  sent_at bigint NOT NULL, -- microseconds since 1970
  parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (scope, id)
);
CREATE INDEX parked_by_key ON semel.parked (scope, key, n);
