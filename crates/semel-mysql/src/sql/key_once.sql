-- ? key, ? fingerprint, ? nonce, ? and ? and ? retention, both, retention in microseconds, ? digest of the outcome
-- "forgotten", ? version. Inside the user's transaction: a concurrent duplicate waits here for its end, then gets error
-- 1062 and looks. UTC_TIMESTAMP, because the session's time zone is the user's.
INSERT INTO semel_key (key_bytes, state, fingerprint, token, nonce, until_us, tombstone_us, due_us, outcome_code, outcome,
  digest, token_last, version, replaces)
SELECT ?, 'done', ?, t.now_us, ?, t.now_us + ?, t.now_us + ?, t.now_us + ?, 'f', '', ?, t.now_us, ?, 0
FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now_us) AS t
