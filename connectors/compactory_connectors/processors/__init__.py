"""Processors: a function for the events of a topic, whose results are written exactly once."""

from .event import Event, Failed, Output, Refused
from .processor import Processor, Retry, processor
from .runner import ProcessRunner
from .status import ProcessWorker

__all__ = ["Event", "Failed", "Output", "ProcessRunner", "ProcessWorker", "Processor", "Refused", "Retry", "processor"]
