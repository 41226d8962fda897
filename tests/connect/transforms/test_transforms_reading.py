"""The options of transforms and predicates: every problem at once, with the nearest name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactory_connectors.connect.transforms import PREDICATES, REGISTRY, read_transforms
from compactory_connectors.connect.transforms.branches import Failed, Leaf, cases_of
from docs.generate.transforms import EXAMPLES
from tests.connect.transform_cases import chain_of, source_record

KAFKA = "org.apache.kafka.connect.transforms."
COLUMNS: list[dict[str, Any]] = [{"name": "id", "type": "int8", "required": True}, {"name": "name", "type": "text"}]


def problems_of(*transforms: Mapping[str, str], **more: Mapping[str, str]) -> list[str]:
    """Problems of a chain x0, x1, …; ``more`` are predicates."""
    settings = {f"x{n}.{key}": value for n, options in enumerate(transforms) for key, value in options.items()}
    below = {f"{name}.{key}": text for name, options in more.items() for key, text in options.items()}
    aliases = [f"x{n}" for n in range(len(transforms))]
    return read_transforms(aliases, settings, predicates=list(more), predicate_options=below)[1]


def test_all_problems_at_once() -> None:
    assert problems_of(
        {"type": f"{KAFKA}Cast$Value", "spec": "id:in32", "spek": "x"},
        {"type": f"{KAFKA}MaskField", "fields": "a"},
        {"type": "io.confluent.connect.transforms.ExtractField$Value", "field": "a"},
        {"type": "com.example.Fancy"},
        {"type": f"{KAFKA}Filter", "predicate": "internl", "negate": "yes"},
        {},
        internal={"type": f"{KAFKA}predicates.TopicNameMatches", "pattern": "["},
        topic={"type": f"{KAFKA}predicates.TopicNameMatch"},
    ) == [
        "predicates.internal.pattern: a class is not closed, not '['",
        (
            f"predicates.topic.type: {KAFKA}predicates.TopicNameMatch is not a predicate that Compactory knows; did you"
            f" mean {KAFKA}predicates.TopicNameMatches?"
        ),
        "transforms.x0.spek: unknown option of Cast$Value; did you mean spec?",
        (
            "transforms.x0.spec: must name types, not 'id:in32': in32 is none of int8, int16, int32, int64, float32,"
            " float64, boolean, string; did you mean int32?"
        ),
        f"transforms.x1.type: {KAFKA}MaskField has two forms; write {KAFKA}MaskField$Key or {KAFKA}MaskField$Value",
        (
            "transforms.x2.type: io.confluent.connect.transforms.ExtractField$Value is not a transform that Compactory"
            f" knows; did you mean {KAFKA}ExtractField$Value?"
        ),
        (
            "transforms.x3.type: com.example.Fancy is not a transform that Compactory knows; it knows ChangeCase, Cast,"
            " ExtractField, Filter, Flatten, HoistField, InsertField, MaskField, RegexRouter, ReplaceField,"
            " SetSchemaMetadata, TimestampConverter, ValueToKey"
        ),
        "transforms.x4.predicate: internl is not in predicates; did you mean internal?",
        "transforms.x4.negate: must be true or false, not 'yes'",
        "transforms.x5.type: missing; name the Java class of the transform",
    ]


def test_aliases_that_are_not_listed_and_those_listed_twice() -> None:
    _, problems = read_transforms(["a", "a"], {"a.type": f"{KAFKA}Filter", "b.type": "x"})
    assert problems == [
        "transforms: a is listed more than once",
        "transforms.b.type: b is not in transforms",
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"type": "InsertField$Value"}, (
            ": no field to insert; set topic.field, partition.field, timestamp.field or static.field"
        )),
        ({"type": "InsertField$Value", "offset.field": "o"}, (
            ": offset.field: a source's records have no offset yet, so Kafka Connect fails on it too"
        )),
        ({"type": "InsertField$Value", "static.field": "s"}, ": static.field needs static.value"),
        ({"type": "ReplaceField$Value", "include": "a", "whitelist": "b"}, (
            ": whitelist is the older name of include; leave it out"
        )),
        ({"type": "ReplaceField$Value", "renames": "a"}, ".renames: must be pairs old:new, not 'a': a is none"),
        ({"type": "ReplaceField$Value", "renames": "a:c,b:c"}, (
            ".renames: must give every field a name of its own, not 'a:c,b:c': c is there more than once"
        )),
        ({"type": "SetSchemaMetadata$Key"}, ": nothing to set; give schema.name or schema.version"),
        ({"type": "SetSchemaMetadata$Key", "schema.version": "x"}, (
            ".schema.version: must be a whole number, not 'x'"
        )),
        ({"type": "RegexRouter", "regex": "(a)", "replacement": "$2"}, ": replacement: there is no group 2"),
        ({"type": "ExtractField$Key", "field": "a.b", "field.syntax.version": "V2"}, (
            ".field.syntax.version: must be 'V1' or 'v1', not 'V2': a path is not supported; chain an ExtractField for"
            " each struct"
        )),
        ({"type": "Cast$Value", "spec": "int8,a:int8"}, (
            ".spec: must be one type alone, or fields with their types, not 'int8,a:int8': both at once contradict each"
            " other"
        )),
        ({"type": "Filter", "negate": "true"}, (
            ".negate: there is no predicate to negate; set predicate, or leave negate out"
        )),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(options: dict[str, str], problem: str) -> None:
    """Classes may be named without their package, as in Kafka Connect."""
    assert problems_of(options) == [f"transforms.x0{problem}"]


HEADERS = "records have no headers here; keep the field in the value, or add one with InsertField"
LEFT_OUT = {
    "DropHeaders": HEADERS,
    "HeaderFrom$Key": HEADERS,
    "InsertHeader": HEADERS,
    "TimestampRouter": "a row's records would end up in several topics; name one topic with RegexRouter",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_classes_that_are_left_out_are_refused_by_name(name: str) -> None:
    problem = f"{name.split('$', maxsplit=1)[0]} is not supported: {LEFT_OUT[name]}"
    assert problems_of({"type": name}) == problems_of({"type": KAFKA + name}) == [f"transforms.x0.type: {problem}"]


def test_a_predicate_that_is_left_out_is_refused_by_name() -> None:
    problem = f"predicates.p.type: HasHeaderKey is not supported: {HEADERS}"
    assert problems_of(p={"type": f"{KAFKA}predicates.HasHeaderKey", "name": "h"}) == [problem]


@pytest.mark.parametrize(
    ("transforms", "reason"),
    [
        ([{"type": "Cast$Value", "spec": "int8"}], "the value is a struct, which can't be cast"),
        ([{"type": "HoistField$Key", "field": "k"}], (
            "the key is missing: HoistField would give every record the same one; make a key first"
        )),
        ([{"type": "MaskField$Key", "fields": "k"}], "the key is missing, but MaskField needs a struct"),
        ([{"type": "InsertField$Value", "topic.field": "id"}], "there would be more than one field id"),
        ([{"type": "ReplaceField$Value", "renames": "nme:name"}], (
            "renames: nme:name names a field that is not there, while name is"
        )),
        ([{"type": "ValueToKey", "fields": "nam"}], "the value has no field nam; did you mean name? (it has id, name)"),
        ([{"type": "ValueToKey", "fields": "id, id"}], "there would be more than one field id"),
        ([{"type": "MaskField$Value", "fields": "id", "replacement": "x"}], "id: replacement 'x' is not a number"),
    ],
)  # fmt: skip
def test_chains_that_do_not_fit_the_columns(transforms: list[dict[str, str]], reason: str) -> None:
    place = f"transforms.x{len(transforms) - 1}"
    assert cases_of(source_record(COLUMNS), chain_of(transforms)) == Failed(f"{place}: {reason}")


def test_fields_that_are_not_there_are_warned_of() -> None:
    chain = chain_of(
        [
            {"type": "Cast$Value", "spec": "nam:int8"},
            {"type": "MaskField$Value", "fields": "x"},
            {"type": "ReplaceField$Value", "exclude": "ids"},
        ]
    )
    case = cases_of(source_record(COLUMNS), chain)
    assert isinstance(case, Leaf)
    assert case.record.warnings == (
        "Cast changes nothing: the value has no field nam; did you mean name?",
        "MaskField changes nothing: the value has no field x",
        "ReplaceField changes nothing: the value has no field ids; did you mean id?",
    )


@pytest.mark.parametrize("class_name", [*REGISTRY, *PREDICATES])
def test_every_class_has_an_example_that_can_be_read(class_name: str) -> None:
    short = class_name.rsplit(".", 1)[1]
    name = next(key for key in EXAMPLES if key.split("$")[0] == short.split("$")[0])
    options = {"type": class_name, **{key: text for key, text in EXAMPLES[name].items() if key != "predicate"}}
    if class_name in PREDICATES:
        assert problems_of(p=options) == []
    else:
        assert problems_of(options) == []


FUNCTIONS = [
    ("json", "must be module:function, not 'json'"),
    ("no.such:f", "module no.such can't be imported (No module named 'no'); install it or add it to PYTHONPATH"),
    ("json:loadz", "module json has no function loadz"),
    ("json:decoder", "module json has no function decoder"),
    ("broken_transform:f", "module broken_transform raised ZeroDivisionError while it was imported"),
]


@pytest.mark.parametrize(("text", "problem"), FUNCTIONS)
def test_functions_that_can_not_be_loaded(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_transform.py").write_text("1 / 0")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert read_transforms([], {}, function=text) == ((), [f"compactory.transform: {problem}"])
