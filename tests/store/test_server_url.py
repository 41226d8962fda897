"""The base URLs of servers."""

from __future__ import annotations

import pytest

from compactory import ConfigError
from compactory_client.server_url import ServerUrl


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("http://[::1]", "http://[::1]"),
        ("https://[::1]:8443/", "https://[::1]:8443"),
        ("HTTP://h//", "http://h"),
        ("http://h:8080/behind/a/proxy/", "http://h:8080/behind/a/proxy"),
    ],
)
def test_the_base_url_of_a_server(text: str, base: str) -> None:
    assert ServerUrl.parse(text) == ServerUrl(base=base, authorization=None)
    assert ServerUrl.parse(text, "t").authorization == "Bearer t"


@pytest.mark.parametrize(
    ("login", "authorization"),
    [("user:pa%40ss%3A", "Basic dXNlcjpwYUBzczo="), ("user", "Basic dXNlcjo="), ("%C3%BC:p", "Basic w7w6cA==")],
)
def test_a_user_and_password_are_sent_and_never_shown(login: str, authorization: str) -> None:
    found = ServerUrl.parse(f"http://{login}@[::1]/")
    assert (found.base, found.authorization) == ("http://[::1]", authorization)
    assert authorization not in repr(found)
    with pytest.raises(ConfigError, match="has a user, and there is a token"):
        ServerUrl.parse(f"http://{login}@h", "t")


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:8080", "http://", "http:///v1", "http://u:secret@", "ftp://u:secret@h", "http://::1", "http://::1:80",
     "http://[::1", "http://h:http", "http://u:secret@h:65536", "http://h:0", " http://h", "http://h:80\n",
     "http://h?a=1", "http://h/#a"],
)  # fmt: skip
def test_other_texts_are_refused_without_a_password(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^url: must be http://HOST\[:PORT\] or https://HOST\[:PORT\], not '"
    ) as refused:
        ServerUrl.parse(text)
    assert "secret" not in str(refused.value)
