"""Access: tokens, hosts, paths that need no token."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable

import pytest

from compactory import ConfigError
from compactory_api.http.access import Access, Client, Scope, Tokens, is_loopback
from compactory_api.http.problem import Misdirected, Unauthorized
from tests.api.serving import Serving
from tests.store.topics import Topics

Serve = Callable[..., Serving]

READ, ADMIN = "read-me.0123456789", "admin/me+0123456789=="


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_without_the_token_there_is_nothing_but_probes(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"v":1}'))
    serving = serve(topic, access=Access(Tokens(read=READ, admin=ADMIN)))
    paths = [f"/v1/directories/{topic}/entries/a", f"/v1/directories/{topic}/entries", "/v1/directories", "/v1/status"]
    for path in [*paths, "/v1/errors", "/openapi.json", "/nothing", "/v1/directories/nope/entries/a"]:
        refusals = [{}, *map(bearer, ("", "x", READ[:-1], f"{READ}x", f"{READ} {READ}", READ.upper(), "é"))]
        for headers in [*refusals, {"Authorization": READ}, {"Authorization": f"Basic {READ}"}]:
            sent = {name: value.encode() for name, value in headers.items()}
            refused = serving.ask(path, headers=sent)  # type: ignore[arg-type]
            assert (refused.status, refused.problem) == (401, "unauthorized"), (path, headers)
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert READ not in refused.body.decode()
    for path in ("/livez", "/readyz", "/metrics"):
        assert serving.ask(path).status == 200
    for headers in (bearer(READ), bearer(ADMIN), {"Authorization": f"bearer  {READ}"}):
        assert serving.ask(paths[0], headers=headers).json == {"v": 1}
        assert serving.ask("/v1/status", headers=headers).status == 200
    batch_path = f"/v1/directories/{topic}/entries:batchGet"
    assert serving.ask(batch_path, "POST", body=b'{"keys":["a"]}').status == 401


def test_guarantee_4_bytes_of_bad_records_are_for_the_admin(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("secret-key", '{"pan": 4111'), ("other", '{"v":1}'))
    serving = serve(topic, access=Access(Tokens(read=READ, admin=ADMIN)))
    read = serving.ask("/v1/errors", headers=bearer(READ))
    [error] = read.json["errors"]
    assert set(error) == {"directory", "topic", "partition", "offset", "timestamp_ms", "error"}
    assert (error["topic"], error["partition"], error["offset"]) == (topic, 0, 0)
    assert error["error"] == "DecodeError"
    assert b"4111" not in read.body
    assert b"secret-key" not in read.body
    [whole] = serving.ask("/v1/errors", headers=bearer(ADMIN)).json["errors"]
    assert base64.b64decode(whole["value_base64"]) == b'{"pan": 4111'
    assert base64.b64decode(whole["key_base64"]) == b"secret-key"
    assert "Traceback" in whole["stacktrace"]
    everybody = serve(topic)
    [error] = everybody.ask("/v1/errors").json["errors"]
    assert "value_base64" not in error, "without an admin token nobody is admin"
    assert everybody.ask("/v1/errors?limit=0").status == 400


def test_errors_come_newest_first_and_are_counted(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"k{n}", "nope") for n in range(7)))
    answer = serve(topic).ask("/v1/errors?limit=3").json
    assert answer["outstanding"] == 7
    assert len(answer["errors"]) == 3


def test_a_local_server_without_a_token_answers_no_strangers_page(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    serving = serve(topic, access=Access.for_listener("127.0.0.1", Tokens(), no_auth=False))
    path = f"/v1/directories/{topic}/entries/a"
    for host in (
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.",
        "",
        "[::1",
        "127.0.0.1@evil",
    ):
        refused = serving.ask(path, headers={"Host": host})
        assert (refused.status, refused.problem) == (421, "misdirected"), host
        assert serving.ask("/v1/directories", headers={"Host": host}).status == 421
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", f"127.0.0.1:{serving.port}", "[::1]", "[::1]:8080"):
        assert serving.ask(path, headers={"Host": host}).status == 200, host
    assert serving.ask("/livez", headers={"Host": "evil.example"}).status == 200


def test_listening_to_the_network_needs_a_token_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.example.org", ""):
        with pytest.raises(ConfigError, match=r"COMPACTORY_HTTP_READ_TOKEN.*--no-auth"):
            Access.for_listener(host, Tokens(), no_auth=False)
        assert Access.for_listener(host, Tokens(), no_auth=True).check(None, b"any").default is Scope.READ
        with pytest.raises(Unauthorized):
            Access.for_listener(host, Tokens(admin=ADMIN), no_auth=False).check(None, None)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host)
        access = Access.for_listener(host, Tokens(), no_auth=False)
        assert access.check(None, b"localhost:80").default is Scope.WRITE
        own = f"[{host}]:80" if ":" in host else f"{host}:80"
        assert access.check(None, own.encode()).default is Scope.WRITE
        with pytest.raises(Misdirected):
            access.check(None, None)
    with pytest.raises(ConfigError, match="contradicts"):
        Access.for_listener("0.0.0.0", Tokens(read=READ), no_auth=True)


def test_tokens_are_checked_and_never_shown() -> None:
    for bad in ("with space", "é", "new\nline", "", "=a"):
        with pytest.raises(ConfigError, match="RFC 6750"):
            Tokens(read=bad)
    with pytest.raises(ConfigError, match="the same"):
        Tokens(read=READ, admin=READ)
    client_tokens = Tokens(write=READ, clients=(Client(name="me", token=READ, scopes={}),))
    with pytest.raises(ConfigError, match="the write token and the client me's token are the same"):
        Access(client_tokens)
    assert READ not in repr(Tokens(read=READ, admin=ADMIN)) + repr(client_tokens)
    assert Tokens(admin=ADMIN).for_reading == ADMIN
    assert Tokens(read=READ, admin=ADMIN).for_reading == READ
    assert not Tokens()


def test_errors_pickle() -> None:
    for error in (Unauthorized("x"), Misdirected("y")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
