-- ? key, ? nonce. The mark just made; the time, and the floor of tokens.
SELECT k.token, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now_us,
  (SELECT t.token FROM semel_token AS t WHERE t.one = 1) AS floor
FROM semel_key AS k WHERE k.key_bytes = ? AND k.nonce = ?
