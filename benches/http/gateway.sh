#!/usr/bin/env bash
# A service without the layer, and `semel run` as a gateway in front of it, for holes.py --cmd. Both end together.
#   BENCHES=path of semel-benches  SEMEL=path of semel  LISTEN=host:port  EFFECTS=file  LEASE_MS=ms  SQLITE_PATH=file
set -eu
folder=$(mktemp -d)
upstream="${LISTEN%:*}:$((${LISTEN##*:} + 1))"
cat > "$folder/semel.toml" <<TOML
[server]
listen = "${LISTEN%:*}:$((${LISTEN##*:} + 2))"
[store]
url = "sqlite:${SQLITE_PATH}"
[[gateway]]
name = "holes"
listen = "$LISTEN"
upstream = "http://$upstream"
principal_header = "Authorization"
key = "required"
lease_ms = $LEASE_MS
TOML
LISTEN=$upstream "$BENCHES" serve-http --store none &
one=$!
"$SEMEL" run -c "$folder/semel.toml" --log warn &
other=$!
trap 'kill "$one" "$other" 2>/dev/null; wait; rm -rf "$folder"' EXIT
trap 'exit 0' TERM INT
wait -n
