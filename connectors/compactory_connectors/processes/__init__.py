"""Processors: a function is called for each event of a topic, and what it returns is written once."""

from .event import Event, Failed, Output, Refused
from .processor import Processor, Retry, processor
from .runner import ProcessRunner
from .worker import ProcessWorker

__all__ = ["Event", "Failed", "Output", "ProcessRunner", "ProcessWorker", "Processor", "Refused", "Retry", "processor"]
