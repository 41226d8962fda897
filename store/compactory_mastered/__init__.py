"""Directories mastered in Kafka: checked writes, made by one process at a time."""

from compactory.write.operation import Operation, WriterCursor, Written, WrittenBatch
from compactory_mastered.rules import WriteRules
from compactory_mastered.writer import MasteredWriter

__all__ = ["MasteredWriter", "Operation", "WriteRules", "WriterCursor", "Written", "WrittenBatch"]
