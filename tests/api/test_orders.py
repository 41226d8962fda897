"""Operators' orders to connectors over HTTP: who may give them, what they are, what is refused; made-up workers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from compactory.errors import OrderRefused
from compactory.worker import Order, Verb
from compactory_api.http.access import Tokens
from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from tests.api.serving import Answer, ask
from tests.api.test_listener import LOCAL, Fake

ADMIN = {"Authorization": "Bearer adm"}
TABLE = "public.ta/b"


class OrderedWorker(Fake):
    """A worker that notes orders."""

    connector = "c/1 é"

    def __init__(self) -> None:
        super().__init__("source c")
        self.orders: list[Order] = []
        self.standby = False

    def tables(self) -> list[str]:
        return [TABLE]

    def admin_status(self) -> dict[str, Any]:
        return self.status() | {"sample": "values"}

    def run_command(self, order: Order) -> None:
        if self.standby:
            raise OrderRefused("a standby")
        self.orders.append(order)


@pytest.fixture
def worker() -> OrderedWorker:
    return OrderedWorker()


@pytest.fixture
def port(worker: OrderedWorker) -> Iterator[int]:
    with Listener(LOCAL, [Fake("other"), worker], Tokens(read="rd", admin="adm")) as listener:
        yield listener.address.port


def tell(port: int, path: str, method: str = "POST", document: Any = None, **headers: str) -> Answer:
    body = None if document is None else json.dumps(document).encode()
    return ask(port, "/v1/connectors/c%2F1%20%C3%A9" + path, method, body=body, headers={**ADMIN, **headers})


def test_each_order_reaches_its_worker(port: int, worker: OrderedWorker) -> None:
    keys = [base64.b64encode(key).decode() for key in (b'"T1"', b"\x00\xff")]
    table = "/tables/public.ta%2Fb"
    answers = [
        tell(port, "/pause", "PUT"),
        tell(port, "/resume", "PUT"),
        tell(port, "/restart"),
        tell(port, f"{table}/restart"),
        tell(port, f"{table}/approve", document={"removal": "17"}),
        tell(port, f"{table}/resend", document={"keys_base64": keys}),
    ]
    assert [(answer.status, answer.json) for answer in answers] == [(202, {"detail": "é"})] * 6
    assert worker.orders == [
        Order(verb=Verb.PAUSE),
        Order(verb=Verb.RESUME),
        Order(verb=Verb.RESTART),
        Order(verb=Verb.RESTART, table=TABLE),
        Order(verb=Verb.APPROVE, table=TABLE, removal="17"),
        Order(verb=Verb.RESEND, table=TABLE, keys=(b'"T1"', b"\x00\xff")),
    ]


def test_whoever_may_read_gives_no_orders(port: int, worker: OrderedWorker) -> None:
    assert ask(port, "/v1/connectors").problem == "unauthorized"
    reads = {"Authorization": "Bearer rd"}
    assert ask(port, "/v1/connectors", headers=reads).json == {"connectors": [OrderedWorker.connector]}
    assert tell(port, "/status", "GET", **reads).json == {"detail": "é"}
    assert tell(port, "/status", "GET").json == {"detail": "é", "sample": "values"}, (
        "values of rows: for administrators"
    )
    assert tell(port, "/pause", "PUT", **reads).problem == "forbidden"
    assert tell(port, "/tables/x/approve", document={"removal": "1"}, **reads).problem == "forbidden"
    assert not worker.orders


@pytest.mark.parametrize("tokens", [Tokens(), Tokens(read="rd")])
def test_without_an_admin_token_nobody_gives_orders(worker: OrderedWorker, tokens: Tokens) -> None:
    """A page that a browser shows could reach a listener of the same machine."""
    with Listener(LOCAL, [worker], tokens) as listener:
        headers = {"Authorization": "Bearer rd"}
        assert ask(listener.address.port, "/v1/connectors/c/restart", "POST", headers=headers).problem == "forbidden"
        assert ask(listener.address.port, "/v1/connectors", headers={**headers, "Host": "evil"}).status in (200, 421)
    with Listener(Listen("0.0.0.0", 0), [worker]) as listener:
        assert ask(listener.address.port, "/v1/connectors/c/restart", "POST").problem == "unauthorized"
    assert not worker.orders


def test_what_does_not_fit_is_refused_with_its_reason(port: int, worker: OrderedWorker) -> None:
    assert tell(port, "/pause").headers["allow"] == "PUT"
    assert tell(port, "/status", "DELETE").status == 405
    for path in ("/stop", "", "/tables/public.ta%2Fb", "/tables/public.ta%2Fb/pause", "/approve", "/pause/x"):
        assert tell(port, path).problem == "no-resource", path
    assert ask(port, "/v1/connectors/other/pause", "PUT", headers=ADMIN).status == 404
    assert "it has: public.ta/b" in tell(port, "/tables/gone/restart").json["detail"]
    approve = "/tables/public.ta%2Fb/approve"
    documents: list[Any] = [{}, {"removal": ""}, {"removal": 1}, [], "x"]
    for document in documents:
        assert tell(port, approve, document=document).problem == "bad-request", document
    assert ask(port, f"/v1/connectors/c%2F1%20%C3%A9{approve}", "POST", headers=ADMIN).problem == "bad-request"
    resend = "/tables/public.ta%2Fb/resend"
    for keys in ([], ["*"], [1], "YQ==", ["YQ=="] * 10_001):
        assert tell(port, resend, document={"keys_base64": keys}).problem == "bad-request", str(keys)[:9]
    worker.standby = True
    assert tell(port, "/pause", "PUT").problem == "refused"
    assert not worker.orders


def test_a_body_is_bounded_and_read_only_from_those_who_may(port: int) -> None:
    path = "/v1/connectors/c%2F1%20%C3%A9/tables/public.ta%2Fb/resend"
    for length in ("9999999999", "99999999"):
        assert ask(port, path, "POST", headers={**ADMIN, "Content-Length": length}).status == 413
    for length in ("-1", "x"):
        assert ask(port, path, "POST", headers={**ADMIN, "Content-Length": length}).status == 400
    waits = ask(port, path, "POST", headers={"Content-Length": "99"})
    assert waits.status == 401, "and does not wait for a body"
    chunked = {**ADMIN, "Transfer-Encoding": "chunked"}
    assert ask(port, path, "POST", body=b"0\r\n\r\n", headers=chunked).status == 400
