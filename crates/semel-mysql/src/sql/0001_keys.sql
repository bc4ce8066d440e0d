-- Keys: one row per key; see semel_core::claim. Times are microseconds since 1970. Each statement may be run again.
CREATE TABLE IF NOT EXISTS semel_key (
  -- The scope's length in one byte, the scope, the id: Key::to_bytes. Compared byte by byte, never trimmed.
  key_bytes       VARBINARY(511) NOT NULL PRIMARY KEY,
  -- For people; not stored.
  scope           VARBINARY(255) AS (SUBSTRING(key_bytes, 2, ORD(key_bytes))) VIRTUAL,
  id              VARBINARY(255) AS (SUBSTRING(key_bytes, 2 + ORD(key_bytes))) VIRTUAL,
  state           VARCHAR(9) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  fingerprint     VARBINARY(64),
  token           BIGINT,                   -- fencing token
  nonce           VARBINARY(16),            -- of the claim that holds or held it
  hold            TINYINT,                  -- 1: when its owner is lost it becomes unknown
  extended        TINYINT,
  attempt         INT,
  until_us        BIGINT,                   -- claimed: end of the lease; done: end of the retention
  outcome_code    CHAR(1) CHARACTER SET ascii COLLATE ascii_bin,  -- s succeeded, r refused, f forgotten
  outcome         MEDIUMBLOB,
  digest          VARBINARY(32),
  tombstone_us    BIGINT,
  withdrawn       VARBINARY(128),           -- nonces that must not be granted, 16 bytes each
  withdrawn_us    BIGINT,
  due_us          BIGINT,                   -- when the sweep has something to do with it
  token_last      BIGINT NOT NULL,          -- the largest token this row has had, kept when the key is free again
  version         BIGINT NOT NULL,          -- random, new with each write
  replaces        BIGINT NOT NULL,          -- the version that this one was decided on; 0: there was no row
  CONSTRAINT semel_key_state CHECK (state IN ('absent', 'claimed', 'unknown', 'done', 'tombstone')),
  KEY semel_key_due (due_us)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- No token of a removed row is larger than this one.
CREATE TABLE IF NOT EXISTS semel_token (
  one   TINYINT NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_token (one, token) VALUES (1, 0) ON DUPLICATE KEY UPDATE token = token;

-- Transactions of `transact` that are committed, to be found again when the reply to the commit was lost. The id begins
-- with the time; a sweep removes those of yesterday.
CREATE TABLE IF NOT EXISTS semel_commit (
  id VARBINARY(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;
