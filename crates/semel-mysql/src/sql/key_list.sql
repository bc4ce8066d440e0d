-- ? from this key, ? to before that one, ? (four times) state or null, ? rows at most. Rows of another state may be
-- among them, where the state that is stored does not tell what it reads as now.
SELECT key_bytes, state, fingerprint, token, nonce, hold, extended, attempt, until_us, outcome_code, outcome, digest,
  tombstone_us, withdrawn, withdrawn_us, token_last, version,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now_us
FROM semel_key FORCE INDEX (PRIMARY)
WHERE key_bytes >= ? AND key_bytes < ?
  AND (? IS NULL OR state = ? OR (? = 'unknown' AND state = 'claimed') OR (? = 'tombstone' AND state = 'done'))
ORDER BY key_bytes LIMIT ?
