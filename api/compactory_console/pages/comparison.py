"""The page of comparisons: a topic with its table, and one directory on two servers."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from compactory.errors import ConfigError
from compactory_connectors.source.verify.verifier import Options, verify

from ..call import Call
from ..processes import Process, directory_path

__all__ = ["comparison_page"]

_SAMPLES = 20
_MOST_RANGES = 16  # whose records are read to find samples
_WAIT = 10.0  # seconds for changes that are under way


async def comparison_page(call: Call) -> Response:
    """Return the form, and the result of the comparison that it asks for."""
    call.session.demand_read()
    name, first, second = call.query("directory"), call.number("first"), call.number("second")
    outcomes, result = None, None
    if name is not None:
        call.session.demand_read(name)
        if first is not None and second is not None:
            result = await _compare_servers(call, name, call.parts.servers.at(first), call.parts.servers.at(second))
        else:
            outcomes = await _compare_with_table(call, name)
    return call.page(
        "comparison.html",
        names=sorted({item["name"] for server in call.parts.servers.processes for item in server.directories}),
        with_tables=sorted(call.parts.options.connectors),
        name=name, first=first, second=second, outcomes=outcomes, result=result, samples=_SAMPLES,
    )  # fmt: skip


async def _compare_with_table(call: Call, name: str) -> Any:
    connector = call.parts.options.connectors.get(name)
    if connector is None:
        raise ConfigError(
            f'directory {name!r} names no connector: write connector = "FILE.json" into [directories.{name}]'
        )
    options = Options(wait=_WAIT, most_differences=_SAMPLES)
    return await call.parts.operators.in_kafka(lambda kafka: [*verify(connector, kafka, options)])


async def _compare_servers(call: Call, name: str, first: Process, second: Process) -> dict[str, Any]:
    """Compare the digests of both servers; read records of ranges that differ, for samples."""
    ask, path = call.parts.servers.ask, directory_path(name)
    documents = [await ask(server, f"{path}/digest") for server in (first, second)]
    differing = [
        number
        for number, digests in enumerate(zip(documents[0]["ranges"], documents[1]["ranges"], strict=True))
        if digests[0] != digests[1]
    ]
    samples: list[tuple[str, str, Any, Any]] = []
    counts = dict.fromkeys(("missing", "extra", "different"), 0)
    if differing:
        ranges = ",".join(map(str, differing[:_MOST_RANGES]))
        records = [await _records(call, server, f"{path}/digest/{ranges}?values=true") for server in (first, second)]
        for key in sorted(records[0].keys() | records[1].keys()):
            first_value, second_value = records[0].get(key), records[1].get(key)
            if first_value == second_value:
                continue
            kind = "missing" if second_value is None else "extra" if first_value is None else "different"
            counts[kind] += 1
            if len(samples) < _SAMPLES:
                samples.append((kind, key, first_value, second_value))
    return {
        "first": documents[0], "second": documents[1], "differing": len(differing), "samples": samples,
        "counts": counts, "is_whole": len(differing) <= _MOST_RANGES,
    }  # fmt: skip


async def _records(call: Call, server: Process, path: str) -> dict[str, Any]:
    """Return the values of key ranges by key."""
    records: dict[str, Any] = {}
    async with call.parts.servers.stream(server, path) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            record = orjson.loads(line)
            if "key" in record:
                records[record["key"]] = _value(record["value"])
    return records


def _value(text: str | None) -> Any:
    """Return the JSON of a raw value, else its text."""
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
