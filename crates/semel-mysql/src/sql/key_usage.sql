-- ? from this key, ? to before that one, ? rows counted at most.
SELECT COUNT(*) AS records, CAST(COALESCE(SUM(LENGTH(outcome)), 0) AS SIGNED) AS bytes
FROM (SELECT outcome FROM semel_key FORCE INDEX (PRIMARY) WHERE key_bytes >= ? AND key_bytes < ? LIMIT ?) AS held
