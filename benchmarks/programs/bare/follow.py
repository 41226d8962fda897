"""The yardstick of `latency`: NOTIFY → SELECT → produce.

``bare.follow DSN KAFKA TOPIC [OFFSETS]``. It reads the row whose id the notification carries, and
loses what is committed while it is away. With a topic for OFFSETS each record goes out in a Kafka transaction with an
offset, else it keeps none.
"""

from __future__ import annotations

import sys

import psycopg
from confluent_kafka import Producer

QUERY = """SELECT id::text, json_build_object('id', id, 'terminalId', terminal_id, 'acquirerId', acquirer_id,
 'isActive', is_active, 'updatedDate', to_char(updated_date, 'YYYY-MM-DD HH24:MI:SS.MS'))::text
 FROM terminal_acquirer WHERE id = %s"""


def main() -> None:
    dsn, bootstrap, topic, *offsets = sys.argv[1:]
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True}
        | ({"transactional.id": topic} if offsets else {})
    )
    if offsets:
        producer.init_transactions(30)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("LISTEN bare")
        print("listening", flush=True)
        while True:
            notifications = list(connection.notifies(stop_after=1))  # all that have come together
            if offsets:
                producer.begin_transaction()
            for notification in notifications:
                key, value = connection.execute(QUERY, [int(notification.payload)]).fetchone() or ("", "")
                producer.produce(topic, value, key)
                if not offsets:
                    producer.flush()
            if offsets:
                producer.produce(offsets[0], notifications[-1].payload, topic)
                producer.commit_transaction(30)


if __name__ == "__main__":
    main()
