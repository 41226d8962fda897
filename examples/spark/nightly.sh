#!/bin/sh
# Loads, publishes, compares and exports a partner's delivery of yesterday. Ends with the exit code of the step that did
# not end well: 1 and 2 need somebody, 3 and 4 are worth another try. It may be started again at any time.
#
#   nightly.sh INCOMING LAKE [DAY]      COMPACTORY_* and compactory.toml say where Kafka, Postgres and the stores are
set -eu

incoming=$1
lake=$2
day=${3:-$(date -u -d yesterday +%F)}
directory=${DIRECTORY:-terminal_acquirer}

# The id makes it one load, however often this runs. A file that lacks half of the keys is refused, not obeyed.
compactory spark load "$incoming/$day" --directory "$directory" --to postgres --mode replace \
  --load-id "$directory-$day" --max-deactivate 5% --rejects "$incoming/$day.rejects" --max-rejects 1% --report "$incoming/$day.json"

# The source publishes what was loaded; --wait is how long it may take.
compactory verify "$directory" --no-values --wait 120

compactory spark export "$directory" --to "$lake/$directory/$day" --overwrite
