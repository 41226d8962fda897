#!/usr/bin/env bash
# Gives each component its Kafka ACLs and no others. Running it again changes nothing. docs/security.md has the table.
#
#   deploy/kafka-acls.sh source User:directory-source      the rights of `compactory source run`
#   deploy/kafka-acls.sh store User:payments               the rights of a GlobalStore, `compactory serve`, get, directories
#   deploy/kafka-acls.sh writer User:back-office           the rights of a DirectoryWriter
#   deploy/kafka-acls.sh outbox User:orders-relay          the rights of `compactory outbox run`
#   deploy/kafka-acls.sh sink User:ledger                  the rights of `compactory sink run`
#   deploy/kafka-acls.sh master User:tenants-api           the rights of `compactory serve` on directories with mastered = "kafka"
#   deploy/kafka-acls.sh process User:registration         the rights of `compactory process run`
#
# Environment:
#   BOOTSTRAP      bootstrap servers (needed)
#   TOPICS         topics of the directories, the outbox, the sink or the processor, separated by spaces (needed)
#   CONNECTORS     names of the connectors, separated by spaces (needed for source): name of the JSON, else the file's stem
#   HEARTBEATS     yes: the connectors have compactory.heartbeat.interval.ms
#   CREATE_TOPICS  no: you create the topics, and the source runs with --no-create-topics
#   PROCESSORS     names of the processors, separated by spaces (needed for process)
#   OUTPUTS        topics that the processors write, separated by spaces
#   KAFKA_ACLS     the command of the tool (default kafka-acls.sh)
#   COMMAND_CONFIG properties file for the tool's login
set -euo pipefail

component=${1:-} principal=${2:-}
if [[ ! $component =~ ^(source|store|writer|outbox|sink|master|process)$ || $principal != *:* ]]; then
    sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0" >&2
    exit 2
fi
: "${BOOTSTRAP:?give the bootstrap servers}" "${TOPICS:?name the topics of the directories}"

allow() { # resource arguments -- operations
    local arguments=(--bootstrap-server "$BOOTSTRAP" --add --allow-principal "$principal")
    [[ -z ${COMMAND_CONFIG:-} ]] || arguments+=(--command-config "$COMMAND_CONFIG")
    while [[ $1 != -- ]]; do arguments+=("$1"); shift; done
    shift
    for operation in "$@"; do arguments+=(--operation "$operation"); done
    # The tool may be a command with arguments of its own.
    # shellcheck disable=SC2086
    ${KAFKA_ACLS:-kafka-acls.sh} "${arguments[@]}"
}

topics=()
for topic in $TOPICS; do topics+=(--topic "$topic"); done

case $component in
source)
    ids=()
    for connector in ${CONNECTORS:?name the connectors}; do ids+=(--transactional-id "compactory-$connector"); done
    operations=(Read Write DescribeConfigs)
    [[ ${CREATE_TOPICS:-yes} == no ]] || operations+=(Create)
    # Read and Write include Describe. Write on a topic includes idempotent production since Kafka 2.8.
    [[ ${HEARTBEATS:-no} == no ]] || topics+=(--topic compactory-heartbeats)
    allow "${topics[@]}" --topic compactory-offsets -- "${operations[@]}"
    allow "${ids[@]}" -- Write
    ;;
store)
    # No group: a store assigns partitions itself and commits nothing.
    allow "${topics[@]}" -- Read
    ;;
writer)
    # DescribeConfigs tells how large a record may be and whether the topic is compacted; it can do without.
    allow "${topics[@]}" -- Write DescribeConfigs
    ;;
outbox)
    # DescribeConfigs tells publishers how large a message may be; it can do without. Transactional ids have many names.
    allow "${topics[@]}" -- Write DescribeConfigs
    operations=(Read Write)
    [[ ${CREATE_TOPICS:-yes} == no ]] || operations+=(Create)
    allow --topic compactory-outbox -- "${operations[@]}"
    allow --transactional-id compactory-outbox- --resource-pattern-type prefixed -- Write
    ;;
sink)
    allow "${topics[@]}" -- Read
    allow --group compactory-sink- --resource-pattern-type prefixed -- Read
    ;;
master)
    ids=() notes=()
    for topic in $TOPICS; do
        ids+=(--transactional-id "compactory-writes-$topic")
        notes+=(--topic "$topic-writes")
    done
    operations=(Read Write DescribeConfigs)
    allow "${topics[@]}" -- "${operations[@]}"
    [[ ${CREATE_TOPICS:-yes} == no ]] || operations+=(Create)
    allow "${notes[@]}" -- "${operations[@]}"
    allow "${ids[@]}" -- Write
    ;;
process)
    allow "${topics[@]}" -- Read
    outputs=()
    for topic in ${OUTPUTS:-}; do outputs+=(--topic "$topic"); done
    [[ ${#outputs[@]} -eq 0 ]] || allow "${outputs[@]}" -- Write
    operations=(Read Write)
    [[ ${CREATE_TOPICS:-yes} == no ]] || operations+=(Create)
    for name in ${PROCESSORS:?name the processors}; do
        allow --topic "compactory-process-$name" -- "${operations[@]}"
        allow --group "compactory-process-$name" -- Read
        # Each process has an id of its own.
        allow --transactional-id "compactory-process-$name-" --resource-pattern-type prefixed -- Write
    done
    ;;
esac
