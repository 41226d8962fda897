"""``compactory snapshot`` on Apache Kafka, and a store that starts from what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import BackendFailed, ConfigError, Directory, GlobalStore, Memory, RocksDB
from tests.cli.conftest import Shell
from tests.store.topics import Topics


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    """Topics of the run's Apache Kafka."""
    return Topics(kafka, unique)


def test_a_pod_starts_from_a_file(compactory: Shell, kafka: str, topics: Topics, tmp_path: Path) -> None:
    """Guarantees 2 and 3: only newer records are read; a file of another definition is no use."""
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, ("1", '{"k":"a"}'), ("2", '{"k":"b"}'))
    compactory.write("compactory.toml", f'[kafka]\nbootstrap.servers = "{kafka}"\n[directories.{name}]\nkey = "k"\n')
    outcome = compactory("snapshot", name, "--to", str(tmp_path / "new" / "file"), "--json")
    assert outcome.json == [{"topic": name, "written": str(tmp_path / "new" / "file")}]
    topics.cut(name, 2)
    topics.produce(name, ("3", '{"k":"c"}'))
    with GlobalStore(kafka, [Directory(name, key="k")], backend=Memory(bootstrap=tmp_path / "new" / "file")) as store:
        assert set(store[name]) == {"a", "b", "c"}
        assert not store.rebuilds()
    with GlobalStore(kafka, [name], backend=Memory(bootstrap=tmp_path / "new" / "file")) as store:
        assert store.rebuilds() == {(name, "redefined"): 1}
    with GlobalStore(kafka, [name], backend=Memory(bootstrap=tmp_path / "absent")) as store:
        assert set(store[name]) == {"3"}


def test_several_topics_need_a_folder(compactory: Shell, kafka: str, topics: Topics, tmp_path: Path) -> None:
    one, two = topics.create(), topics.create()
    outcome = compactory("snapshot", one, two, "--to", str(tmp_path / "file"), "--kafka", kafka)
    assert outcome.code == 2
    assert "2 topics need a file each" in outcome.err
    (tmp_path / "notes").write_text("mine", encoding="ascii")
    outcome = compactory("snapshot", one, "--to", str(tmp_path / "notes"), "--kafka", kafka)
    assert (outcome.code, "is not replaced" in outcome.err) == (2, True)
    outcome = compactory("snapshot", one, two, "--to", f"{tmp_path}/", "--kafka", kafka)
    assert outcome.code == 0
    assert len(list(tmp_path.glob("*.saved"))) == 2


def test_a_file_in_an_object_store(kafka: str, topics: Topics, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, ("a", "{}"))
    with GlobalStore(kafka, [name]) as store:
        assert store.save(name, "memory://bucket/").startswith(f"memory://bucket/{name}")
        with pytest.raises(ConfigError, match="needs fsspec"):
            store.save(name, "nowhere://bucket/")
        with pytest.raises(BackendFailed, match="can't be written"):
            store.save(name, "/proc/nowhere/file")
        assert store.save(name, f"file://{tmp_path}/new/").startswith(f"{tmp_path}/new/{name}")
        assert store.save(name, tmp_path / "new" / "file") == f"{tmp_path}/new/file"
    topics.cut(name, 1)
    topics.produce(name, ("b", "{}"))
    with GlobalStore(kafka, [name], backend=Memory(tmp_path, bootstrap="memory://bucket/")) as store:
        assert set(store[name]) == {"a", "b"}
        store._reader.run(store._reader._flush, 5)
    with (
        GlobalStore(kafka, [name], backend=RocksDB(tmp_path / "rocks")) as store,
        pytest.raises(ConfigError, match="in memory"),
    ):
        store.save(name, "memory://bucket/")
