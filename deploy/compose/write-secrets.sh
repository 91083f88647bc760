#!/bin/sh
# Writes the secrets of ../compose.yaml into a directory, each for the user of the only container that reads it.
set -eu
umask 077
cd "$1"
if [ -n "$(ls -A)" ]; then
  echo "$1 is not empty; nothing was written" >&2
  exit 2
fi
random() { head -c 32 /dev/urandom | base64 | tr -d '=\n' | tr '+/' '-_'; }
payout-gateway init . > /dev/null
rm gateway.toml # compose.yaml has its own
cp admin-token prometheus-token
random > grafana-password
random > postgres-password
printf 'postgresql://gateway:%s@postgres/gateway' "$(cat postgres-password)" > state-url
if [ "$(id -u)" = 0 ]; then
  chown 10001 gateway.key admin-token state-url
  chown 999 postgres-password
  chown 65534 prometheus-token
  chown 472 grafana-password
fi
