#!/bin/sh
# Makes the secrets that docker-compose.yml reads, random, in deploy/compose/secrets (or the folder given). Run it once,
# before the first `docker compose up`: the database keeps the passwords that it was made with.
set -eu
folder=${1:-$(dirname "$0")/secrets}
if [ -e "$folder/owner_password" ]; then
    echo "$folder: there already; remove it, and the volume of Postgres with it, to begin anew" >&2
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
# The folder keeps others out; the files are mounted into containers whose users are not this one.
chmod 644 "$folder"/*
