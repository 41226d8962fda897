"""Log lines: one form for people, one for programs, no secret in either."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from compactory_cli.context.configuration import load_configuration
from compactory_cli.context.environment import read_environment
from compactory_cli.context.flags import Flags, LogFormat, LogLevel
from compactory_cli.context.logging import configure_logging, hide_secrets


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def log(form: LogFormat, level: LogLevel | None = None) -> None:
    configure_logging(load_configuration(Flags(log_format=form, log_level=level), read_environment({})), LogLevel.INFO)
    structlog.get_logger("compactory.source").info("connected", url="postgresql://me:s3cr3t@h/db", password="s3cr3t")
    logging.getLogger("compactory.kafka").warning("lost %s", "sasl.password=s3cr3t")
    structlog.get_logger("compactory.source").debug("hidden by the level")


def test_programs_get_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log(LogFormat.JSON)
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["event"] == "connected"
    assert first["url"] == "postgresql://me:[hidden]@h/db"
    assert first["password"] == "[hidden]"
    assert {"level", "logger", "timestamp"} <= first.keys()
    assert second["event"] == "lost sasl.password=[hidden]"
    assert second["logger"] == "compactory.kafka"


def test_the_lines_of_a_record_are_parted_where_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(load_configuration(Flags(log_format=LogFormat.JSON), read_environment({})), LogLevel.INFO)
    for extra in ({"line_by_line": True}, {}):
        logging.getLogger("compactory.audit").info("%s", "put of 'a'\nput of 'b'", extra=extra)
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events == ["put of 'a'", "put of 'b'", "put of 'a'\nput of 'b'"]


def test_people_get_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log(LogFormat.CONSOLE)
    printed = capsys.readouterr().err
    assert "connected" in printed
    assert "url=postgresql://me:[hidden]@h/db" in printed
    assert "s3cr3t" not in printed


def test_the_level_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    log(LogFormat.JSON, LogLevel.ERROR)
    assert capsys.readouterr().err == ""


def test_text_without_a_secret_stays_as_it_is() -> None:
    event = {"event": "reads http://host:80/path", "rows": 5, "key": "T1"}
    hidden = dict(event)
    hide_secrets(hidden)
    assert hidden == event


def test_ctrl_c_is_no_traceback_of_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    """As py4j logs it while Spark works on a call."""
    configure_logging(load_configuration(Flags(), read_environment({})), LogLevel.INFO)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logging.getLogger().exception("KeyboardInterrupt while sending command.")
    assert capsys.readouterr().err == ""
