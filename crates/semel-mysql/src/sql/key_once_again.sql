-- A row that is there and free is marked: ? fingerprint, ? and ? token, ? nonce, ? end of retention, ? of the tombstone,
-- ? of retention again, ? digest of the outcome "forgotten", ? version, ? key, ? version that was looked at.
UPDATE semel_key SET state = 'done', fingerprint = ?, token = ?, token_last = ?, nonce = ?, hold = NULL, extended = NULL,
  attempt = NULL, until_us = ?, tombstone_us = ?, due_us = ?, outcome_code = 'f', outcome = '', digest = ?,
  replaces = version, version = ?
WHERE key_bytes = ? AND version = ?
