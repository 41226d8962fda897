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
        (r"\Qa.b\E+", "a.bbb", r"c", True, "c"),
        (r"[\w.-]+", "a-b.c", r"$0$0", True, "a-b.ca-b.c"),
        (r"\p{Alpha}+\d*", "abc12", r"x", True, "x"),
        (r"[\p{Upper}_]+", "A_B", r"x", True, "x"),
        (r"(?i)SHOP", "shop", r"x", True, "x"),
        (r"(?i:S)hop", "shop", r"x", True, "x"),
        (r"a{2,3}+", "aaa", r"x", True, "x"),
        (r"x*", "", r"-", True, "-"),
        (r"((((((((((a))))))))))b", "ab", r"$10$11", True, "aa1"),
        (r"(a)", "a", r"$12", True, "a2"),
        (r"a", "a", r"\$1\\", True, "$1\\"),
        (r"[]a]+", "]a", r"x", True, "x"),
        (r"[^]a]+", "bc", r"x", True, "x"),
        (r"\d+\z", "12", r"n", True, "n"),
        (r"\x41\u0042", "AB", r"x", True, "x"),
        (r"[a-c-]+", "a-b", r"x", True, "x"),
        (r"(?<n>a)\k<n>", "aa", r"${n}", True, "a"),
        (r"\w+", "é", r"x", False, "é"),
        (r"[~|&]", "|", r"x", True, "x"),
        (r"(?>ab|a)b", "abb", r"x", True, "x"),
        (r"(?!p)\w+", "shop", r"x", True, "x"),
        (r"^shop$", "shop", r"x", True, "x"),
    ],
)
def test_patterns_and_replacements(pattern: str, text: str, replacement: str, matches: bool, replaced: str) -> None:
    compiled = java_pattern(pattern)
    assert (compiled.fullmatch(text) is not None) is matches
    assert replace_first(compiled, replacement)(text) == replaced


REFUSED = [
    ("[a&&b]", "classes within classes, && and -- are not supported"),
    ("[a[b]]", "classes within classes, && and -- are not supported"),
    ("[a", "a class is not closed"),
    ("[\\Qa\\E]", "classes within classes, && and -- are not supported"),
    ("a{x}", "a brace must be a repetition such as {2,3}; write \\{ for the character"),
    ("\\Gx", "\\G is not supported"),
    ("\\x{41}", "\\x is not supported"),
    ("\\p{L}", "\\p is not supported; write the class out"),
    ("\\p{Punct}", "\\p is not supported; write the class out"),
    ("\\h", "\\h is not supported; write the class out"),
    ("x\\", "ends with a backslash"),
    ("(?u)x", "flag u is not supported"),
    ("x(?i)y", "a construct that begins with (?i) is not supported"),
    ("(?P<x>y)", "a construct that begins with (?P< is not supported"),
    ("\\kx", "\\k is not supported"),
]


@pytest.mark.parametrize(("pattern", "problem"), REFUSED)
def test_what_python_lacks_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        java_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(", "a**", "(?<=a*)b", "[z-a]"])
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


@given(st.text())
def test_quoted_text_matches_itself_alone(text: str) -> None:
    quoted = java_pattern("\\Q" + text.replace("\\E", "") + "\\E")
    assert quoted.fullmatch(text.replace("\\E", ""))
    assert not quoted.fullmatch(text + "x")


@given(st.text(st.characters(exclude_characters="$\\\\")), st.text())
def test_a_replacement_without_signs_is_itself(replacement: str, text: str) -> None:
    assert replace_first(java_pattern("(?s).*"), replacement)(text) == replacement
