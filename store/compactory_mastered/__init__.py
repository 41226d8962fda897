"""Directories mastered in Kafka: checked writes, made by one process at a time."""

from compactory.write.operation import Operation
from compactory_mastered.rules import WriteRules
from compactory_mastered.writer import MasteredWriter
from compactory_mastered.written import Written

__all__ = ["MasteredWriter", "Operation", "WriteRules", "Written"]
