-- ? and ? token, ? key, ? nonce.
UPDATE semel_key SET token = ?, token_last = ? WHERE key_bytes = ? AND nonce = ?
