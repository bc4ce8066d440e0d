-- ? outcome code, ? outcome, ? digest, ? and ? and ? retention, both, retention in microseconds, ? version, ? key,
-- ? token, ? nonce.
UPDATE semel_key SET outcome_code = ?, outcome = ?, digest = ?,
  until_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
  tombstone_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
  due_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?, version = ?
WHERE key_bytes = ? AND token = ? AND nonce = ? AND state = 'done'
