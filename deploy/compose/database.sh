#!/bin/bash
# Runs once, when the volume of Postgres is empty: creates the roles, the database, and the article's table.
set -euo pipefail

sql() { psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" "$@"; }

for role in owner source writer; do
    sql --dbname postgres --set role="compactory_$role" --set password="$(cat "/run/secrets/${role}_password")" <<'END'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
END
done
sql --dbname postgres --command 'CREATE DATABASE reference OWNER compactory_owner'
sql --dbname reference --command 'SET ROLE compactory_owner' --file /opt/reference/terminal_acquirer.sql
