"""Directories mastered in Kafka: writes that are checked, and that only one process at a time may make."""

from compactory_mastered.operation import Operation, Written
from compactory_mastered.rules import WriteRules
from compactory_mastered.writer import MasteredWriter

__all__ = ["MasteredWriter", "Operation", "WriteRules", "Written"]
