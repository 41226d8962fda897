"""Look a terminal up: python examples/lookup.py [BOOTSTRAP [TERMINAL]]."""

import sys

from compactory import Directory, GlobalStore, Index

kafka, terminal = (*sys.argv[1:], *("localhost:9092", "T1")[len(sys.argv) - 1 :])

terminals = Directory(
    "terminal_acquirer",  # name; the topic has the same name unless topic= says otherwise
    key="terminalId",  # look up by this field of the value; default: the record's key
    active="isActive",  # a value whose field is false means: deleted
    indexes=[Index("acquirerId")],
)

with GlobalStore(kafka, [terminals]) as store:  # returns when read to the high watermark
    print(store["terminal_acquirer"][terminal]["acquirerId"])  # dict-fast, no I/O
