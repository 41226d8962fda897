"""Whole numbers in bodies of writes: kept exactly, or refused; never rounded."""

from __future__ import annotations

import json

import pytest

from compactory import Directory
from compactory_api.http.problem import BadRequest
from compactory_api.http.response import shower
from compactory_api.mastered.write_request import line_operation, value_of
from compactory_mastered import WriteRules


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": 18446744073709551615}', b"[-9223372036854775808]", b'{"n": "18446744073709551616"}',
        b'{"\\"18446744073709551616": 1}', b"[0.12345678901234567890]", b"[12345678901234567890.5]",
        b"[12345678901234567890123E2]", b"[1e-0000000000000000000001, 1E+0000000000000000000001]",
    ],
)  # fmt: skip
def test_what_fits_and_what_is_no_whole_number_is_taken(body: bytes) -> None:
    assert value_of(body) == json.loads(body)


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 200])
def test_a_number_beyond_64_bits_is_refused_by_name(number: str) -> None:
    for call in (
        lambda: value_of(f'{{"a": "x", "n": [1, {number}]}}'.encode()),
        lambda: line_operation(f'{{"op": "put", "key": "t1", "value": {{"n": {number}}}}}'.encode()),
    ):
        with pytest.raises(BadRequest, match=f"the number {number[:20]}.* has more than 64 bits.*send it as text"):
            call()


def test_a_number_beyond_64_bits_is_shown_exactly_without_the_internal_fields() -> None:
    show = shower(Directory("tenants", rules=WriteRules(internal=("token",))))
    assert show is not None
    assert (
        show('{"n": 18446744073709551617, "token": "s", "t": "é"}'.encode())
        == '{"n":18446744073709551617,"t":"é"}'.encode()
    )
