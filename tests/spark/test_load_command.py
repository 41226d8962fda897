"""``compactory spark load`` as a user runs it. One load starts a JVM; what is wrong with arguments is told without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from compactory_cli.stack.postgres import embedded_binaries
from compactory_connectors.schema import install
from tests.docs.pages import ROOT, blocks
from tests.spark.conftest import needs_spark
from tests.stack.apache_kafka import QUICK

EXAMPLE = ROOT / "examples" / "spark" / "tariffs"
QUICKLY = ["--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={QUICK}"]


def compactory(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTORY_")}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("COMPACTORY_SPARK_")}
    command = [sys.executable, "-m", "compactory_cli", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_rules_of_the_page_are_those_of_the_example() -> None:
    [block] = [block for block in blocks("yaml") if block.page.name == "spark.md"]
    assert block.text == (EXAMPLE / "rules.yaml").read_text()


@pytest.mark.proof
def test_the_first_load_of_the_page(database: str, tmp_path: Path) -> None:
    """The page's commands, run in the example's folder: what they print, keep, report and load."""
    needs_spark()
    folder = tmp_path / "tariffs"
    shutil.copytree(EXAMPLE, folder)
    [block] = blocks("sh", run="spark")
    change, create, *lines = block.text.replace("postgresql://user@localhost/reference", database).splitlines()
    assert ROOT / change.removeprefix("cd ") == EXAMPLE
    subprocess.run([embedded_binaries() / create.split()[0], *create.split()[1:]], cwd=folder, check=True)
    for line in lines:
        words = [word.strip("'") for word in line.split()[1:]]
        done = compactory(folder, *words, *(QUICKLY if words[0] == "spark" else []))
        assert done.returncode == 0, done.stderr
    for text in ("table public.tariffs: loaded", "monday.csv:5: fee has more than 2 decimals", "clocks skipped it"):
        assert text in done.stdout
    assert done.stderr.count("WARNING") == done.stderr.count("WARNING: Using incubator modules"), "the JVM's own line"
    assert "default log level" not in done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["rows"] == {"read": 6, "rejected": 2, "duplicates": 1, "accepted": 3}
    assert report["changes"] == {"insert": 3, "update": 0, "unchanged": 0, "deactivate": 0}
    assert report["outcome"] == "done"
    [rejects] = (folder / "rejects").glob("part-*.json")
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [5, 7]
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT code, name, country, fee::text, changed AT TIME ZONE 'utc' FROM tariffs"
        ).fetchall()
    assert sorted((*row[:4], str(row[4])) for row in rows) == [
        ("T001", "Gold", "DE", "999.00", "2024-04-02 06:00:00"),
        ("T002", "Silver; plus", "NO", "12.50", "2024-03-30 11:00:00"),
        ("T003", "Bronze", "SE", "3.99", "2024-03-31 02:30:00"),
    ]


def test_every_problem_of_the_arguments_at_once(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("colums: {}\n")
    arguments = [
        "a.csv",
        "--directory",
        "tariffs",
        "--to",
        "postgres",
        "--rules",
        "rules.yaml",
        "--max-rejects",
        "many",
    ]
    done = compactory(tmp_path, "spark", "load", *arguments, "--report", "none/report.json", "--json")
    assert done.returncode == 2
    problems = json.loads(done.stderr)["problems"]
    for text in ("mean columns?", "--max-rejects many", "which database?", "--report none/report.json"):
        assert any(text in problem for problem in problems), (text, problems)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"PATH": "/nonexistent"}, "there is none on PATH: install a Java 17"),
        ({"JAVA_HOME": "/none"}, "JAVA_HOME=/none"),
    ],
)
def test_java_that_is_missing_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = ["a.csv", "--directory", "tariffs", "--to", "kafka", "--kafka", "127.0.0.1:1"]
    done = compactory(tmp_path, "spark", "load", *arguments, "--report", "report.json")
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "failed"


def test_a_table_that_is_missing_is_told_before_spark_starts(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/none")
    arguments = ["a.csv", "--directory", "tariffs", "--to", "postgres", "--postgres", database]
    done = compactory(tmp_path, "spark", "load", *arguments)
    assert done.returncode == 2
    assert "there is no table tariffs" in done.stderr


def test_a_directory_mastered_in_kafka_needs_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/none")
    (tmp_path / "compactory.toml").write_text(
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[directories.tenants]\nmastered = "kafka"\ntopic = "t"\n'
    )
    for name in ("tenants", "t"):
        done = compactory(tmp_path, "spark", "load", "a.csv", "--directory", name, "--to", "kafka")
        assert done.returncode == 2
        assert "directory 'tenants': its servers write it (mastered = \"kafka\"): set COMPACTORY_URL" in done.stderr


@pytest.mark.proof
def test_a_broken_file_is_a_line(database: str, tmp_path: Path) -> None:
    """Without a stack of Java: neither of the task that met it nor of the job."""
    needs_spark()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE tariffs (code text PRIMARY KEY)")
        install(connection)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    arguments = ["a.parquet", "--directory", "tariffs", "--to", "postgres", "--postgres", database, *QUICKLY]
    done = compactory(tmp_path, "spark", "load", *arguments)
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path}/a.parquet: can't be read: " in done.stderr
    assert "Exception" not in done.stderr
    assert "\tat " not in done.stderr
