"""compactory_client and the commands on it, against a running server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from compactory import (
    BatchRefused,
    ConfigError,
    Conflict,
    CursorConflict,
    Directory,
    EntryMissing,
    Index,
    PreconditionFailed,
    UnknownDirectory,
    Unreachable,
    WaitTimeout,
    WriteFailed,
    WriteRefused,
)
from compactory_api.http.access import Access, Scope
from compactory_client import AsyncClient, Client, Entries, WriterCursor, WriteResult
from compactory_mastered import Operation, WriteRules
from tests.api.serving import Serving
from tests.cli.conftest import NOBODY_HOME, Shell
from tests.store.topics import Topics


@dataclass(frozen=True)
class Tenant:
    email: str
    seats: int = 1


@pytest.fixture
def serving(serve: Callable[..., Serving], topics: Topics) -> Serving:
    rules = WriteRules(schema={"required": ["email"]}, key_from=("email",), unique=(("email",),))
    tenants = Directory("tenants", topic=topics.create(), indexes=[Index("email", unique=True)], rules=rules)
    return serve(tenants, access=Access(anonymous=Scope.WRITE))


def test_a_client_reads_what_it_wrote_and_raises_the_servers_errors(serving: Serving) -> None:
    with Client(f"http://127.0.0.1:{serving.port}") as client:
        tenants = client.directory(Directory("tenants", decode=Tenant))
        result = tenants.put("a/b", Tenant("a@x"), create=True)
        for seats in range(2, 20):
            result = tenants.put("a/b", Tenant("a@x", seats), if_match=result.etag)
            assert tenants.get("a/b") == result  # at once: the client carries the token
        assert result.value == Tenant("a@x", 19)
        assert tenants.patch("a/b", {"seats": 3}).value.seats == 3
        posted = tenants.post(Tenant("ä@x"))
        assert tenants.get(posted.key).value.email == "ä@x"
        refusals: list[tuple[type[Exception], Callable[[], Any]]] = [
            (Conflict, lambda: tenants.put("c", Tenant("a@x"))),
            (PreconditionFailed, lambda: tenants.put("a/b", Tenant("b@x"), create=True)),
            (EntryMissing, lambda: tenants.get("z")),
            (UnknownDirectory, lambda: client.directory("nobody").get("z")),
        ]
        for error, call in refusals:
            with pytest.raises(error):
                call()
        with pytest.raises(WriteRefused) as refused:
            client.directory("tenants").put("c", {"seats": 1})
        assert "email" in refused.value.problems[0]
        for key in (".", ".."):
            assert tenants.put(key, Tenant(f"dots{key}@x")) == tenants.get(key)
        tenants.delete("a/b", idempotency_key="once")
        tenants.delete("a/b", idempotency_key="once")
        with pytest.raises(EntryMissing):
            tenants.get("a/b")


def test_coroutines_read_what_they_wrote(serving: Serving) -> None:
    async def main() -> None:
        async with AsyncClient(f"http://127.0.0.1:{serving.port}") as client:
            tenants = client.directory("tenants")
            await asyncio.gather(*(tenants.put(f"t{n}", {"email": f"{n}@x"}) for n in range(20)))
            entries = await asyncio.gather(*(tenants.get(f"t{n}") for n in range(20)))
            assert [entry.value["email"] for entry in entries] == [f"{n}@x" for n in range(20)]
            await tenants.delete("t1")
            with pytest.raises(EntryMissing):
                await tenants.get("t1")

    asyncio.run(main())


def test_many_entries_are_written_and_listed(serving: Serving) -> None:
    operations = [Operation(kind="put", key=f"t{n:04}", value=Tenant(f"{n}@x", n % 2)) for n in range(2_500)]
    operations += [
        Operation(kind="post", value=Tenant("posted@x")),
        Operation(kind="put", key="same", value=Tenant("1@x")),
        Operation(kind="patch", key="t0000", value={"seats": 9}),
        Operation(kind="delete", key="t0001", if_match=("other",)),
        Operation(kind="put", key="t0002", value=Tenant("new@x"), if_none_match=("*",)),
    ]
    listed: list[tuple[str, Tenant]] = []
    with Client(f"http://127.0.0.1:{serving.port}") as client:
        tenants = client.directory(Directory("tenants", decode=Tenant))
        results = list(tenants.bulk(operations))
        listed += tenants.items(prefix="t")  # at once: the client carries the tokens
        assert dict(tenants.items(index="email", values=["7@x"])) == {"t0007": Tenant("7@x", 1)}
    assert all(isinstance(result, WriteResult) and result.created for result in results[:2501])
    assert [type(result) for result in results[2501:]] == [
        Conflict, WriteResult, PreconditionFailed, PreconditionFailed,
    ]  # fmt: skip
    assert [key for key, _ in listed if key.startswith("t0") or len(key) == 5] == [f"t{n:04}" for n in range(2_500)]
    assert dict(listed)["t0000"] == Tenant("0@x", 9)

    async def main() -> None:
        async with AsyncClient(f"http://127.0.0.1:{serving.port}") as second_client:
            entries = second_client.directory("tenants")
            operation = Operation(kind="put", key="a", value={"email": "a@x"})
            results = [result async for result in entries.bulk([operation])]
            assert isinstance(results[0], WriteResult)
            assert [item async for item in entries.items(prefix="a")] == [("a", {"email": "a@x"})]

    asyncio.run(main())


def test_a_batch_is_written_with_its_cursor_or_refused_by_name(serving: Serving) -> None:
    with Client(f"http://127.0.0.1:{serving.port}") as client:
        tenants = client.directory(Directory("tenants", decode=Tenant))
        operations = [Operation(kind="put", key=f"t{n}", value=Tenant(f"{n}@x")) for n in range(100)]
        assert tenants.cursor("feed") is None
        written = tenants.write_batch(operations, cursor=WriterCursor(name="feed", next="1"), idempotency_key="k")
        assert tenants.get("t99").etag == written.results[99].etag  # at once: the client carries the tokens
        assert [(result.key, result.created) for result in written.results] == [(f"t{n}", True) for n in range(100)]
        assert (
            tenants.write_batch(operations, cursor=WriterCursor(name="feed", next="1"), idempotency_key="k") == written
        )
        patch = Operation(kind="patch", key="t1", value={"seats": 2}, if_match=(written.results[1].etag,))
        with pytest.raises(CursorConflict) as conflict:
            tenants.write_batch([patch], cursor=WriterCursor(name="feed", expected="0", next="2"))
        assert conflict.value.cursor == "1"
        for operation, error in (
            (Operation(kind="put", key="x", value=Tenant("1@x")), Conflict),
            (Operation(kind="patch", key="t2", value={"email": None}), WriteRefused),
            (Operation(kind="delete", key="t3", if_match=("other",)), PreconditionFailed),
            (Operation(kind="delete", key="x"), EntryMissing),
        ):
            with pytest.raises(BatchRefused) as refused:
                tenants.write_batch([patch, operation])
            assert (refused.value.index, refused.value.key) == (1, operation.key)
            assert type(refused.value.error) is error
        with pytest.raises(WriteRefused, match="1 to 100 operations"):
            tenants.write_batch([])

    async def main() -> None:
        async with AsyncClient(f"http://127.0.0.1:{serving.port}") as second_client:
            entries = second_client.directory("tenants")
            cursor = WriterCursor(name="feed", expected="1", next="2")
            result = await entries.write_batch([patch], cursor=cursor)
            assert (result.cursor, result.results[0].created) == ("2", False)
            assert (await entries.get("t1")).value["seats"] == 2
            while await entries.cursor("feed") != "2":
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_bulk_request_that_may_have_been_carried_out_is_not_sent_again() -> None:
    script: list[Any] = [httpx2.ConnectError("nobody"), httpx2.ReadTimeout("late")]

    def answer(_request: httpx2.Request) -> httpx2.Response:
        raise script.pop(0)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    entries = Client("http://here", timeout=5, http=http).directory("d")
    with pytest.raises(WriteFailed, match="read the entries") as failed:
        list(entries.bulk([Operation(kind="delete", key="k")]))
    assert failed.value.unknown
    assert not script


def test_a_write_is_repeated_with_its_key_and_an_unknown_outcome_is_never_called_a_failure() -> None:
    """The server's answers are made up: which of them means what is the client's own."""
    sent: list[httpx2.Request] = []
    script: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        step = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        status, document, headers = step
        return httpx2.Response(status, json=document, headers=headers)

    stored = (200, {"n": 1}, {"etag": '"id-0-7"', "compactory-offset": "t:0:7"})
    busy = (503, {"type": "urn:compactory:problem:not-ready", "detail": "it loads"}, {})
    unknown = (503, {"type": "urn:compactory:problem:write-failed", "detail": "?", "outcome": "unknown"}, {})
    lost, refused = httpx2.ReadTimeout("late"), httpx2.ConnectError("nobody")
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    entries = Client("http://here", timeout=0.5, http=http).directory("d")

    script[:] = [lost, busy, unknown, stored]
    assert entries.put("k", {"n": 1}).etag == "id-0-7"
    assert len({request.headers["idempotency-key"] for request in sent}) == 1
    script[:] = [stored]
    entries.get("k")
    assert sent[-1].headers["compactory-min-offset"] == "t:0:7"
    script[:] = [(412, {"type": "urn:compactory:problem:not-fresh-enough", "detail": "behind"}, {})]
    with pytest.raises(WaitTimeout):
        entries.get("k")
    for begin in (lost, unknown):
        script[:] = [begin, busy]
        with pytest.raises(WriteFailed) as failed:
            entries.put("k", {"n": 1})
        assert failed.value.unknown == ("k",)
    script[:] = [refused]
    with pytest.raises(Unreachable):
        entries.put("k", {"n": 1})
    script[:] = [(403, {"type": "urn:compactory:problem:forbidden", "detail": "no"}, {})]
    with pytest.raises(ConfigError, match="no"):
        entries.put("k", {"n": 1})


GATEWAY = httpx2.Response(504, html="<html>504 Gateway Time-out</html>")
INTERNAL = httpx2.Response(500, json={"type": "urn:compactory:problem:internal", "status": 500})
BUSY = httpx2.Response(503, json={"type": "urn:compactory:problem:stopping", "detail": "it shuts down"})
WRITTEN = b'{"status":200,"key":"k","etag":"e","offset":"d:0:1"}\n'


def scripted(*steps: httpx2.Response | Exception, timeout: float = 5) -> tuple[Entries[dict[str, Any]], list[Any]]:
    """Entries of a server that answers by this script, and what is left of the script."""
    script = list(steps)

    def answer(_request: httpx2.Request) -> httpx2.Response:
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    http = httpx2.Client(transport=httpx2.MockTransport(answer), follow_redirects=True)
    return Client("http://here", timeout=timeout, http=http).directory("d"), script


@pytest.mark.parametrize("lost", [GATEWAY, INTERNAL, httpx2.ReadError("cut off")], ids=["proxy", "500", "cut off"])
def test_an_answer_that_does_not_say_what_was_done_leaves_it_unknown(lost: httpx2.Response | Exception) -> None:
    entries, script = scripted(lost, httpx2.Response(200, content=WRITTEN))
    with pytest.raises(WriteFailed, match="read the entries") as failed:
        list(entries.bulk([Operation(kind="put", key="k", value={})]))
    assert failed.value.unknown
    assert len(script) == 1, "a bulk request was sent twice"
    entries, _ = scripted(lost, *[BUSY] * 9, timeout=0.1)
    with pytest.raises(WriteFailed) as failed:
        entries.put("k", {})
    assert failed.value.unknown == ("k",)


@pytest.mark.parametrize("body", [b'{"status":409,"problem":"conflict"}', b"[]", b"<html>"])
def test_a_bulk_reply_of_another_server_is_refused_by_name(body: bytes) -> None:
    entries, _ = scripted(httpx2.Response(200, content=body))
    with pytest.raises(ConfigError, match="was not answered by compactory serve"):
        list(entries.bulk([Operation(kind="put", key="k", value={})]))


@pytest.mark.parametrize("step", [BUSY, httpx2.Response(429), httpx2.ConnectTimeout(""), httpx2.ProxyError("")])
def test_what_was_certainly_not_done_is_sent_again(step: httpx2.Response | Exception) -> None:
    entries, script = scripted(step, httpx2.Response(200, content=WRITTEN))
    assert [type(result) for result in entries.bulk([Operation(kind="put", key="k", value={})])] == [WriteResult]
    assert not script


def test_a_proxy_that_asks_for_a_pause_gets_it_or_no_further_request() -> None:
    def limited(seconds: str) -> httpx2.Response:
        return httpx2.Response(429, headers={"retry-after": seconds})

    stored = httpx2.Response(200, json={}, headers={"etag": '"e"', "compactory-offset": "d:0:7"})
    entries, _ = scripted(limited("1"), stored)
    began = time.monotonic()
    assert entries.put("k", {}).etag == "e"
    assert time.monotonic() - began >= 1
    entries, script = scripted(limited("60"), stored)
    with pytest.raises(Unreachable, match="429"):
        entries.put("k", {})
    assert script == [stored]
    entries, _ = scripted(limited("Wed, 21 Oct 2026 07:28:00 GMT"), stored)
    assert entries.put("k", {}).etag == "e"


@pytest.mark.parametrize("token", ["secret\n", "", "a b", "ü"])
def test_a_token_that_no_header_takes_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="token: must be ASCII without spaces") as refused:
        Client("http://here", token=token)
    assert "secret" not in str(refused.value)


def test_a_user_and_password_of_the_url_are_sent_and_not_shown() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, html="a proxy")

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with pytest.raises(ConfigError, match=r"^http://\[::1\]/v1/.* check the url"):
        Client("http://user:secret@[::1]/", http=http).directory("tenants").get("t1")
    assert requests[0].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="


def test_a_request_that_can_not_be_sent_is_nobodys_outage() -> None:
    entries, script = scripted(httpx2.LocalProtocolError("Illegal header value"), BUSY)
    with pytest.raises(ConfigError, match="no line breaks in an entity tag or Idempotency-Key"):
        entries.put("k", {}, idempotency_key="a\nb")
    assert script == [BUSY]


def test_a_redirect_is_never_followed() -> None:
    """A PUT would become a GET, whose answer looks like that of a write."""
    moved = httpx2.Response(302, headers={"location": "https://here/v1"})
    stored = httpx2.Response(200, json={}, headers={"etag": '"e"', "compactory-offset": "d:0:7"})
    entries, script = scripted(moved, stored)
    with pytest.raises(ConfigError, match=r"http://here/v1/.*HTTP 302, to https://here/v1.* check the url"):
        entries.put("k", {})
    assert script == [stored]


def test_put_and_delete_write_through_a_server(serving: Serving, compactory: Shell) -> None:
    url = f"http://127.0.0.1:{serving.port}"
    result = compactory("put", "tenants", "t1", '{"email": "a@x"}', "--create", "--json", COMPACTORY_URL=url)
    assert result.code == 0, result.err
    assert result.json["value"] == {"email": "a@x"}
    merged = compactory(
        "put", "tenants", "t1", '{"n": 1}', "--merge", "--if-match", result.json["etag"], COMPACTORY_URL=url
    )
    assert json.loads(merged.out) == {"email": "a@x", "n": 1}
    assert compactory("put", "tenants", "t2", '{"email": "a@x"}', COMPACTORY_URL=url).code == 1
    assert compactory("delete", "tenants", "t1", COMPACTORY_URL=url).code == 0
    assert "no entry 't1'" in compactory("delete", "tenants", "t1", COMPACTORY_URL=url).err
    for value in ("[]", "{", "[" * 3000):
        assert compactory("put", "tenants", "t1", value, COMPACTORY_URL=url).code == 2
    login = url.replace("//", "//user:secret@")  # of a proxy
    assert compactory("put", "tenants", "t1", '{"email": "a@x"}', COMPACTORY_URL=login).code == 0
    assert compactory("get", "tenants", "t1", COMPACTORY_URL=login).code == 0
    assert "set COMPACTORY_URL" in compactory("delete", "tenants", "t1").err
    assert compactory("delete", "tenants", "t1", COMPACTORY_URL=f"http://{NOBODY_HOME}").code == 3


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, html="<html>welcome</html>"),
        httpx2.Response(200, json={"status": "ok"}),
        httpx2.Response(200, json=["ok"]),
        httpx2.Response(204),
    ],
)
def test_the_answers_of_another_server_are_told_with_its_address(answer: httpx2.Response) -> None:
    """A wrong url, or a proxy that answers for the server; none is taken for the outcome of a write."""
    http = httpx2.Client(transport=httpx2.MockTransport(lambda _: answer))
    tenants = Client("http://elsewhere", http=http).directory("tenants")
    operations = [Operation(kind="put", key=key, value={}) for key in "ab"]
    for call in (
        lambda: tenants.get("t1"),
        lambda: tenants.put("t1", {}),
        lambda: tenants.post({}),
        lambda: tenants.delete("t1"),
        lambda: dict(tenants.items()),
        lambda: list(tenants.bulk(operations)),
        lambda: tenants.write_batch(operations),
        tenants.cursor,
    ):
        with pytest.raises(ConfigError, match=r"http://elsewhere/v1/directories/tenants/.* check the url"):
            call()


def test_each_line_of_a_bulk_request_has_a_result() -> None:
    line = b'{"status":200,"key":"a","etag":"e","offset":"tenants:0:1"}\n'
    http = httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=line)))
    tenants = Client("http://server", http=http).directory("tenants")
    assert len(list(tenants.bulk([Operation(kind="put", key="a", value={})]))) == 1
    with pytest.raises(ConfigError, match="check the url"):
        list(tenants.bulk(Operation(kind="put", key=key, value={}) for key in "ab"))
