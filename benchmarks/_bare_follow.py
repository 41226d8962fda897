"""The yardstick of `latency`: NOTIFY → SELECT → produce. ``python -m benchmarks._bare_follow DSN KAFKA TOPIC``.

It reads the row whose id the notification carries, keeps no offset, uses no transaction and loses what is committed
while it is away.
"""

from __future__ import annotations

import sys

import psycopg
from confluent_kafka import Producer

QUERY = """SELECT id::text, json_build_object('id', id, 'terminalId', terminal_id, 'acquirerId', acquirer_id,
 'isActive', is_active, 'updatedDate', to_char(updated_date, 'YYYY-MM-DD HH24:MI:SS.MS'))::text
 FROM terminal_acquirer WHERE id = %s"""


def main() -> None:
    dsn, bootstrap, topic = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("LISTEN bare")
        print("listening", flush=True)
        while True:
            for notification in list(connection.notifies(stop_after=1)):
                key, value = connection.execute(QUERY, [int(notification.payload)]).fetchone() or ("", "")
                producer.produce(topic, value, key)
                producer.flush()


if __name__ == "__main__":
    main()
