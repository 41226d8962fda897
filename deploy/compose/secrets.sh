#!/bin/sh
# Writes random secrets for docker-compose.yml into deploy/compose/secrets (or the given folder). Run it once,
# before the first `docker compose up`, because the database keeps its first passwords.
set -eu
folder=${1:-$(dirname "$0")/secrets}
if [ -e "$folder/owner_password" ]; then
    echo "$folder exists already; to start again, remove it and the volume of Postgres" >&2
    exit 1
fi
umask 077
mkdir -p "$folder"
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

for name in postgres owner source writer; do random > "$folder/${name}_password"; done
random > "$folder/http_read_token"
printf 'postgresql://compactory_owner:%s@postgres:5432/reference' "$(cat "$folder/owner_password")" > "$folder/owner_url"
cat > "$folder/source.properties" <<END
reference-data.db.url=jdbc:postgresql://postgres:5432/reference
reference-data.db.user=compactory_source
reference-data.db.password=$(cat "$folder/source_password")
kafka.topic.prefix=
END
# Other users can't enter the folder. The files are readable because the containers run as other users.
chmod 644 "$folder"/*
