-- $1 scope, $2 id, $3 token, $4 nonce, $5 outcome code, $6 outcome. No indexed column changes, so that the row stays on
-- its page and in its indexes where there is room.
UPDATE semel.key SET outcome_code = $5, outcome = $6
WHERE scope = $1 AND id = $2 AND token = $3 AND nonce = $4 AND state = 'done'
