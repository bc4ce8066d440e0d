-- ? key. A locking read: what is committed, not what an older snapshot shows. Shared, so that duplicates of a finished
-- key do not wait for each other.
SELECT key_bytes, state, fingerprint, token, nonce, hold, extended, attempt, until_us, outcome_code, outcome, digest,
  tombstone_us, withdrawn, withdrawn_us, token_last, version,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now_us,
  (SELECT t.token FROM semel_token AS t WHERE t.one = 1) AS floor
FROM semel_key WHERE key_bytes = ? LOCK IN SHARE MODE
