"""The pure part of guarantees 1, 4 and 5: record + state → changes."""

from __future__ import annotations

import json

import pytest

from compactory import BadRecord, Directory, Index, UnknownIndex
from tests.store.tables import Log

ROW = '{"id":%d,"terminalId":"%s","acquirerId":"%s","isActive":%s}'


def row(number: int, terminal: str = "T1", acquirer: str = "A1", active: str = "true") -> str:
    return ROW % (number, terminal, acquirer, active)


def by_terminal(**options: object) -> Log:
    return Log(Directory("d", key="terminalId", **options))  # type: ignore[call-overload]


def test_without_a_key_field_the_record_key_looks_up() -> None:
    log = Log(Directory("d"))
    log.put("1", '{"a":1}')
    log.put("1", '{"a":2}')
    log.put("2", "{}")
    log.delete("2")
    assert log.view == {"1": {"a": 2}}
    assert log.view.raw("1") == b'{"a":2}'
    entry = log.view.entry("1")
    assert (entry.key, entry.value, entry.topic, entry.partition, entry.offset) == ("1", b'{"a":2}', "d", 0, 1)


def test_a_tombstone_removes_only_what_its_own_key_put() -> None:
    """The article's deactivation: old inactive row id 1, new active row id 2, one terminal."""
    log = by_terminal(active="isActive")
    log.put("1", row(1, acquirer="A1"), at=10)
    log.put("2", row(2, acquirer="A2"), at=20)
    assert log.view["T1"]["acquirerId"] == "A2"
    log.put("1", row(1, acquirer="A1", active="false"), at=30)
    assert log.view["T1"]["acquirerId"] == "A2"
    log.delete("1", at=40)
    assert log.view["T1"]["acquirerId"] == "A2"
    log.delete("2", at=50)
    assert "T1" not in log.view


def test_the_newer_timestamp_answers_and_when_it_goes_the_other_appears() -> None:
    log = by_terminal()
    log.put("2", row(2, acquirer="new"), at=20)
    log.put("1", row(1, acquirer="old"), at=10)
    assert log.view["T1"]["acquirerId"] == "new"
    log.delete("2", at=30)
    assert log.view["T1"]["acquirerId"] == "old"
    log.put("2", row(2, acquirer="again"), at=40)
    log.put("1", row(1, acquirer="newest"), at=50)
    assert log.view["T1"]["acquirerId"] == "newest"
    assert len(log.view) == 1


def test_equal_timestamps_go_to_the_higher_partition_then_to_the_later_offset() -> None:
    log = by_terminal()
    log.table.multi_partition = True
    log.put("1", row(1, acquirer="p1"), at=10, partition=1)
    log.put("2", row(2, acquirer="p0"), at=10, partition=0)
    assert log.view["T1"]["acquirerId"] == "p1"
    log.put("3", row(3, acquirer="p1 later"), at=10, partition=1)
    assert log.view["T1"]["acquirerId"] == "p1 later"


def test_a_changed_key_field_moves_the_entry_and_uncovers_a_rival() -> None:
    log = by_terminal()
    log.put("1", row(1, "T1", "first"), at=10)
    log.put("2", row(2, "T1", "second"), at=20)
    log.put("2", row(2, "T2", "second"), at=30)
    assert log.view["T1"]["acquirerId"] == "first"
    assert log.view["T2"]["acquirerId"] == "second"
    log.delete("1", at=40)
    assert set(log.view) == {"T2"}


def test_whole_numbers_become_decimal_text() -> None:
    log = Log(Directory("d", key="id"))
    log.put("x", '{"id":42}')
    log.put("y", '{"id":-1}')
    log.put("z", '{"id":"007"}')
    assert set(log.view) == {"42", "-1", "007"}


@pytest.mark.parametrize("value", ['{"id":null}', "{}", '{"id":true}', '{"id":1.5}', '{"id":["a"]}', "[1]", "{"])
def test_a_key_field_of_another_kind_is_a_bad_record(value: str) -> None:
    """Guarantee 4."""
    log = Log(Directory("d", key="id"))
    log.put("1", '{"id":"a","n":1}')
    log.put("1", value)
    assert log.view == {"a": {"id": "a", "n": 1}}
    (error,) = log.table.quarantine
    assert (error.key, error.value, error.offset) == (b"1", value.encode(), 1)


@pytest.mark.parametrize(
    ("value", "gone"), [("false", True), ("true", False), ("null", False), ("0", False), ('""', False)]
)
def test_only_json_false_deletes(value: str, gone: bool) -> None:
    log = Log(Directory("d", active="isActive"))
    log.put("1", "{}")
    log.put("1", f'{{"isActive":{value}}}')
    assert ("1" not in log.view) is gone


def test_an_empty_value_is_not_a_tombstone() -> None:
    """Guarantee 4: for a JSON directory it is a bad record; for bytes it is a value."""
    raw, objects = Log(Directory("d", decode=bytes)), Log(Directory("d"))
    for log in (raw, objects):
        log.put("1", "{}")
        log.put("1", b"")
    assert raw.view["1"] == b""
    assert objects.view["1"] == {}
    assert len(list(objects.table.quarantine)) == 1


def test_a_bad_value_leaves_the_last_good_one_and_without_one_raises_bad_record() -> None:
    """Guarantee 4: "can't tell" is not "absent"."""
    log = Log(Directory("d"))
    log.put("1", '{"n":1}')
    log.put("1", "nonsense")
    log.put("2", "nonsense")
    assert log.view["1"] == {"n": 1}
    for read in (
        lambda: log.view["2"],
        lambda: log.view.get("2"),
        lambda: log.view.raw("2"),
        lambda: log.view.entry("2"),
    ):
        with pytest.raises(BadRecord):
            read()
    with pytest.raises(BadRecord):
        log.view.get_many(["1", "2"])
    assert "2" not in log.view
    assert [error.offset for error in log.table.quarantine] == [1, 2]


@pytest.mark.parametrize("later", ['{"n":2}', None])
def test_a_later_good_record_or_tombstone_clears_a_bad_one(later: str | None) -> None:
    """Guarantee 4."""
    log = Log(Directory("d"))
    log.put("1", "nonsense")
    log.put("1", later)
    assert log.view.get("1") == (json.loads(later) if later else None)
    assert list(log.table.quarantine) == []
    assert log.table.quarantine.total == 1


@pytest.mark.parametrize("older", ['{"v":1}', None])
def test_an_older_record_of_another_partition_clears_no_bad_one(older: str | None) -> None:
    """Guarantees 1 and 4: it is still the newest of its key, in whatever order partitions are read."""
    log = Log(Directory("d"))
    log.table.multi_partition = True
    log.put("a", "{bad", at=20, partition=1)
    log.put("a", older, at=10, partition=0)
    assert [error.timestamp_ms for error in log.table.quarantine] == [20]
    if older is None:
        with pytest.raises(BadRecord):
            log.view["a"]
    else:
        assert log.view["a"] == {"v": 1}
    log.put("a", '{"v":3}', at=30, partition=0)
    assert list(log.table.quarantine) == []


def test_a_deleted_key_whose_next_record_is_bad_raises_bad_record() -> None:
    """Guarantee 4: the value from before the deletion is no good value."""
    log = Log(Directory("d"))
    log.put("1", "{}")
    log.delete("1")
    log.put("1", "[]")
    with pytest.raises(BadRecord):
        log.view["1"]


def test_with_a_key_field_a_bad_record_is_known_by_it_where_it_can_be_read() -> None:
    """Guarantee 4: here the JSON is fine and the user's decoder refuses."""

    def refuse(value: bytes) -> str:
        raise RuntimeError("no")

    log = Log(Directory("d", key="terminalId", decode=refuse))
    log.put("1", row(1))
    with pytest.raises(BadRecord):
        log.view["T1"]
    log.delete("1")
    assert log.view.get("T1") is None


def test_records_without_a_key_and_keys_that_are_not_text_are_bad() -> None:
    """Guarantee 4."""
    log = Log(Directory("d"))
    log.put(None, "{}")
    log.put(b"\xff", "{}")
    log.put(b"", '{"empty":"key"}')
    assert log.view == {"": {"empty": "key"}}
    assert [error.key for error in log.table.quarantine] == [None, b"\xff"]


def test_a_bad_record_in_the_middle_of_a_run_leaves_its_neighbours_alone() -> None:
    """Guarantee 4: the column-wise way falls back to the record-wise one."""
    from compactory.records import Partition
    from compactory.table.batch import RecordRun

    log = Log(Directory("d"))
    keys = [b"a", b"b", b"c"]
    log.table.apply(RecordRun(Partition("d", 0), list(keys), [b'{"n":1}', b"bad", b'{"n":3}'], [0, 1, 2], [1, 1, 1]))
    assert log.view.get("a") == {"n": 1}
    assert log.view.get("c") == {"n": 3}
    with pytest.raises(BadRecord):
        log.view["b"]


def test_validate_read_lets_bad_values_through_to_the_reader() -> None:
    from compactory import DecodeError

    log = Log(Directory("d"), validate=False)
    log.put("1", "nonsense")
    with pytest.raises(DecodeError, match="partition 0 offset 0"):
        log.view["1"]
    assert list(log.table.quarantine) == []


def test_unique_index() -> None:
    log = Log(Directory("d", indexes=[Index("terminalId", unique=True)]))
    log.put("1", row(1, "T1"), at=10)
    log.put("2", row(2, "T2"), at=10)
    assert log.view.one(terminalId="T1")["id"] == 1
    log.put("3", row(3, "T1"), at=20)
    assert log.view.one(terminalId="T1")["id"] == 3
    assert [found["id"] for found in log.view.find(terminalId="T1")] == [3]
    log.put("1", row(1, "T1", "changed"), at=30)
    assert log.view.one(terminalId="T1")["acquirerId"] == "changed"
    log.put("1", row(1, "T9"), at=40)
    assert log.view.one(terminalId="T1")["id"] == 3
    log.delete("3")
    assert log.view.one(terminalId="T1") is None
    assert dict(log.view.index("terminalId")) == {"T2": json.loads(row(2, "T2")), "T9": json.loads(row(1, "T9"))}


def test_shared_index_nested_composite_and_null() -> None:
    indexes = [Index("address.city"), Index("a", "b", name="pair"), Index("flag")]
    log = Log(Directory("d", indexes=indexes))
    log.put("1", '{"address":{"city":"Riga"},"a":1,"b":"x","flag":true}')
    log.put("2", '{"address":{"city":"Riga"},"a":1,"b":"y","flag":1}')
    log.put("3", '{"address":null,"a":1,"b":null}')
    log.put("4", '{"address.city":"Riga"}')
    view = log.view
    assert [entry.key for entry in view.find_entries(**{"address.city": "Riga"})] == ["1", "2", "4"]
    assert [entry.key for entry in view.find_entries(b="x", a=1)] == ["1"]
    assert [entry.key for entry in view.find_entries(flag=True)] == ["1"]
    assert [entry.key for entry in view.find_entries(flag=1)] == ["2"]
    assert view.index("pair")[1, "y"][0]["flag"] == 1
    assert set(view.index("pair")) == {(1, "x"), (1, "y")}
    assert list(view.index("flag")) == [True, 1]
    assert len(view.index("address.city")["Riga"]) == 3
    log.put("1", '{"address":{"city":"Oslo"}}')
    log.delete("2")
    assert [entry.key for entry in view.find_entries(**{"address.city": "Riga"})] == ["4"]
    assert list(view.index("pair")) == []
    assert view.find(a=1, b=["not", "indexable"]) == []


def test_indexes_cover_the_answering_entry_only() -> None:
    """Of several owners of a lookup key one answers; an index must not bring back the others."""
    log = by_terminal(indexes=[Index("acquirerId")])
    log.put("1", row(1, acquirer="old"), at=10)
    log.put("2", row(2, acquirer="new"), at=20)
    assert log.view.find(acquirerId="old") == []
    log.delete("2")
    assert [found["id"] for found in log.view.find(acquirerId="old")] == [1]
    assert log.view.find(acquirerId="new") == []


def test_an_object_in_an_indexed_field_is_a_bad_record() -> None:
    """Guarantee 4."""
    log = Log(Directory("d", indexes=[Index("a")]))
    log.put("1", '{"a":{}}')
    with pytest.raises(BadRecord):
        log.view["1"]


def test_unknown_indexes_are_named() -> None:
    log = Log(Directory("d", indexes=[Index("a"), Index("b", "c", unique=True)]))
    with pytest.raises(UnknownIndex, match=r"no index over x; it has: a, b\+c; declare it"):
        log.view.find(x=1)
    with pytest.raises(UnknownIndex, match="is not unique"):
        log.view.one(a=1)
    with pytest.raises(UnknownIndex, match="'a', 'b_c'"):
        log.view.index("c")


def test_one_key_in_two_partitions_the_newer_timestamp_wins_tombstones_included() -> None:
    """Guarantee 1: partition growth, or a writer with another partitioner."""
    log = Log(Directory("d"))
    log.table.multi_partition = True
    log.put("a", '{"n":"newer"}', at=20, partition=0)
    log.put("a", '{"n":"older"}', at=10, partition=1)
    assert log.view["a"] == {"n": "newer"}
    log.delete("a", at=30, partition=1)
    log.put("a", '{"n":"late"}', at=25, partition=0)
    assert "a" not in log.view
    log.put("a", '{"n":"latest"}', at=40, partition=0)
    assert log.view["a"] == {"n": "latest"}
    assert log.table.conflicts.count == 4


def test_within_a_partition_the_later_offset_wins_whatever_the_clock_says() -> None:
    """Guarantee 1: log order is the order; the producer's clock may jump back."""
    log = Log(Directory("d"))
    log.table.multi_partition = True
    log.put("a", '{"n":1}', at=20)
    log.put("a", '{"n":2}', at=10)
    assert log.view["a"] == {"n": 2}
    log.delete("a", at=5)
    assert "a" not in log.view


def test_old_tombstone_marks_are_forgotten() -> None:
    log = Log(Directory("d"))
    log.table.multi_partition = True
    log.delete("a", at=10)
    log.delete("b", at=20)
    log.table.conflicts.forget_tombstones(15)
    log.put("a", "{}", at=1, partition=1)
    log.put("b", "{}", at=1, partition=1)
    assert set(log.view) == {"a"}


def test_every_read_gives_an_object_of_its_own() -> None:
    """Guarantee 5."""
    log = Log(Directory("d", indexes=[Index("a", unique=True)]))
    log.put("1", '{"a":1,"list":[]}')
    log.view["1"]["list"].append("mine")
    log.view.one(a=1)["list"].append("mine")
    next(iter(log.view.values()))["list"].append("mine")
    assert log.view["1"] == {"a": 1, "list": []}


def test_iteration_leaves_out_what_is_deleted_meanwhile() -> None:
    """Guarantee 5."""
    log = Log(Directory("d"))
    for number in range(5):
        log.put(str(number), f'{{"n":{number}}}')
    seen = []
    for key, value in log.view.items():
        seen.append((key, value["n"]))
        log.delete("3")
        log.put("9", '{"n":9}')
    assert seen == [("0", 0), ("1", 1), ("2", 2), ("4", 4)]
    assert {"n": 9} in log.view.values()
    assert ("9", {"n": 9}) in log.view.items()


def test_keys_are_text() -> None:
    log = Log(Directory("d"))
    log.put("ключ", '{"n":1}')
    assert log.view["ключ"] == {"n": 1}
    assert 5 not in log.view
    assert "\ud800" not in log.view
    assert log.view.get("\ud800") is None
    with pytest.raises(TypeError, match="text, not int"):
        log.view[5]  # type: ignore[index]
