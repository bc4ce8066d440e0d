-- $1 scope, $2 rows counted at most.
SELECT count(*) AS records, coalesce(sum(octet_length(outcome)), 0)::bigint AS bytes
FROM (SELECT outcome FROM semel.key WHERE scope = $1 LIMIT $2) AS held
