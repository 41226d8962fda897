"""Java's regular expressions in Python: what both understand alike, and what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.connect.javatext.java_regex import java_pattern, replace_first


@pytest.mark.parametrize(
    ("pattern", "text", "replacement", "matches", "replaced"),
    [
        # printed by java.util.regex of Java 25
        (r"(.*)", "shop.t", r"$1-raw", True, "shop.t-raw"),
        (r"a|ab", "ab", r"X", True, "Xb"),
        (r"(a)(b)?", "a", r"<$1$2>", True, "<a>"),
        (r"(?<db>\w+)\.(?<t>.+)", "shop.t_1", r"${t}.${db}", True, "t_1.shop"),
        (r"[\w.-]+", "a-b.c", r"$0$0", True, "a-b.ca-b.c"),
        (r"(?i)SHOP", "shop", r"x", True, "x"),
        (r"a{2,3}+", "aaa", r"x", True, "x"),
        (r"x*", "", r"-", True, "-"),
        (r"((((((((((a))))))))))b", "ab", r"$10$11", True, "aa1"),
        (r"(a)", "a", r"$12", True, "a2"),
        (r"a", "a", r"\$1\\", True, "$1\\"),
        (r"[]a]+", "]a", r"x", True, "x"),
        (r"[^]a]+", "bc", r"x", True, "x"),
        (r"[a-c-]+", "a-b", r"x", True, "x"),
        (r"\w+", "é", r"x", False, "é"),
        (r"[~|&]", "|", r"x", True, "x"),
        (r"(?!p)\w+", "shop", r"x", True, "x"),
        (r"^shop$", "shop", r"x", True, "x"),
    ],
)
def test_patterns_and_replacements(pattern: str, text: str, replacement: str, matches: bool, replaced: str) -> None:
    compiled = java_pattern(pattern)
    assert (compiled.fullmatch(text) is not None) is matches
    assert replace_first(compiled, replacement)(text) == replaced


SETS = "classes within classes, &&, -- and \\Q are not supported"
WRITE_OUT = "is not supported; write the characters out, as a class such as [a-z] or with \\ before"
LETTERS = ["\\Q", "\\G", "\\x", "\\u", "\\p", "\\h", "\\k", "\\z", "\\Z", "\\b", "\\1"]
GROUPS = ["(?<=", "(?>a", "(?P<", "(?i:", "(?i)"]
REFUSED = [(f"{letter}x", f"{letter} {WRITE_OUT}") for letter in LETTERS]
REFUSED += [(f"x{group}y)", f"a construct that begins with {group} is not supported") for group in GROUPS]
REFUSED += [
    ("[a&&b]", SETS),
    ("[a||b]", SETS),
    ("[a[b]]", SETS),
    ("[\\Qa\\E]", SETS),
    ("[a", "a class is not closed"),
    ("a{x}", "a brace must be a repetition such as {2,3}; write \\{ for the character"),
    ("x\\", "ends with a backslash"),
    ("(?u)x", "flag u is not supported"),
]


@pytest.mark.parametrize(("pattern", "problem"), REFUSED)
def test_what_is_not_on_the_list_is_refused_by_name(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        java_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(", "a**", "[z-a]"])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression that is supported"):
        java_pattern(pattern)


@pytest.mark.parametrize(
    ("replacement", "problem"),
    [
        ("$2", "there is no group 2"),
        ("${x}", "there is no group x"),
        ("a$", r"a group is $ and a number, or ${name}; write \$ for the character"),
        ("a\\", "ends with a backslash, which must stand before the character that it quotes"),
    ],
)
def test_replacements_that_do_not_fit(replacement: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        replace_first(java_pattern("(a)"), replacement)


@given(st.text(st.characters(max_codepoint=127)))
def test_escaped_text_matches_itself_alone(text: str) -> None:
    escaped = java_pattern("".join(c if c.isalnum() else f"\\{c}" for c in text))
    assert escaped.fullmatch(text)
    assert not escaped.fullmatch(text + "x")


@given(st.text(st.characters(exclude_characters="$\\\\")), st.text())
def test_a_replacement_without_signs_is_itself(replacement: str, text: str) -> None:
    assert replace_first(java_pattern("(?s).*"), replacement)(text) == replacement
