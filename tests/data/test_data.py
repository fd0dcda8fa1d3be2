"""Rows of data sets: their sources, sharing within and between processes, and errors for invalid files."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable
from envweave_gym.data import sources
from envweave_gym.data.rows import Rows, table_of
from envweave_gym.data.sources import Source, rows_of


class Pair(msgspec.Struct, frozen=True):
    question: str
    answer: str = "?"


def generated(split: str) -> Sequence[Pair]:
    return [Pair(f"{split} {number}", str(number)) for number in range(5)]


SOURCE = Source("pairs", Pair, "somebody/pairs", ("train", "test"), generated, "main")
PAIRS = [{"question": f"q{number}", "answer": str(number), "more": None} for number in range(4)]


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVWEAVE_DATA", raising=False)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


def lines(path: Path, rows: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def all_answers(rows: Sequence[Pair]) -> list[str]:
    return [row.answer for row in rows]


# Where they come from


def test_generated_rows_need_nothing():
    rows = rows_of(SOURCE, "synthetic", "test")
    assert rows[2] == Pair("test 2", "2")
    assert len(rows) == 5


@pytest.mark.parametrize("name", ["pairs_train", "train", "anything"])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_file_or_the_folder_it_is_in_gives_its_rows(tmp_path: Path, name: str, suffix: str):
    path = tmp_path / f"{name}{suffix}"
    if suffix == ".jsonl":
        lines(path, PAIRS)
    elif suffix == ".json":
        path.write_text(json.dumps(PAIRS))
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(PAIRS), path)
    assert all_answers(rows_of(SOURCE, str(path), "train")) == ["0", "1", "2", "3"]
    if name == "anything":
        with pytest.raises(NotAvailable, match="the folder has no such split"):
            rows_of(SOURCE, str(tmp_path), "train")
    else:
        assert len(rows_of(SOURCE, str(tmp_path), "train")) == 4


class Dated(msgspec.Struct, frozen=True):
    created_at: str
    day: str = ""


def test_timestamps_of_parquet_are_the_texts_that_json_has(tmp_path: Path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    when = datetime.datetime(2021, 3, 8, 22, 33, 53)
    kinds = {
        "2021-03-08T22:33:53": arrow.timestamp("us"),
        "2021-03-08T22:33:53Z": arrow.timestamp("ms", "UTC"),
    }
    for text, kind in kinds.items():
        columns = {"created_at": arrow.array([when], kind), "day": arrow.array([when.date()])}
        path = tmp_path / f"{kind.unit}.parquet"
        parquet.write_table(arrow.table(columns), path)
        assert table_of(path, Dated).read(0) == Dated(text, "2021-03-08")


def test_a_folder_of_this_machine_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines(tmp_path / "pairs_test.jsonl", PAIRS[:3])
    monkeypatch.setenv("ENVWEAVE_DATA", str(tmp_path))
    assert len(rows_of(SOURCE, "somebody/pairs", "test")) == 3


@pytest.mark.usefixtures("unreachable")
def test_without_hub_and_data_one_sentence_names_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder, says in [(None, "ENVWEAVE_DATA is not set"), (tmp_path, "has no pairs_train.jsonl")]:
        if folder is not None:
            monkeypatch.setenv("ENVWEAVE_DATA", str(folder))
        with pytest.raises(NotAvailable) as caught:
            rows_of(SOURCE, "somebody/pairs", "train")
        for part in ("dataset='somebody/pairs'", says, "dataset='synthetic'", ".parquet file or of a folder"):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_hub_is_read_through_datasets(monkeypatch: pytest.MonkeyPatch):
    """The hub itself is out of reach here; what ``datasets`` makes of its rows is real."""
    datasets = pytest.importorskip("datasets")
    asked: list[tuple[object, ...]] = []

    def load(name: str, config: str | None, *, split: str) -> object:
        asked.append((name, config, split))
        return datasets.Dataset.from_list(PAIRS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert all_answers(rows_of(SOURCE, "somebody/pairs", "train")) == ["0", "1", "2", "3"]
    assert len(rows_of(SOURCE, "another/of-them", "test")) == 4
    rows_of(SOURCE, "somebody/pairs", "train")
    assert asked == [("somebody/pairs", "main", "train"), ("another/of-them", None, "test")]


def test_without_datasets_the_sentence_names_the_pip_command_and_the_other_ways(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra) as caught:
        rows_of(SOURCE, "somebody/else", "train")
    assert "pip install 'envweave-gym[datasets]'" in str(caught.value)
    assert "dataset='synthetic'" in str(caught.value)


def test_files_are_read_without_the_library_of_the_hub(tmp_path: Path):
    path = lines(tmp_path / "train.jsonl", PAIRS)
    code = f"""
import sys, msgspec
from envweave_gym.data.sources import Source, rows_of
class Pair(msgspec.Struct):
    question: str
rows = rows_of(Source("pairs", Pair, "a/b", ("train",), list), {path!r}, "train")
print(len(rows), *[name for name in ("datasets", "pyarrow", "requests") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["4"]


# What rows are like


def test_rows_are_a_sequence(tmp_path: Path):
    rows = rows_of(SOURCE, lines(tmp_path / "train.jsonl", PAIRS), "train")
    assert isinstance(rows, Sequence)
    assert rows[-1] == rows[3]
    assert [row.answer for row in rows[1:3]] == ["1", "2"]
    assert Pair("q2", "2") in rows
    for place in (4, -5):
        with pytest.raises(IndexError, match="there are 4"):
            rows[place]


@pytest.mark.parametrize("dataset", ["synthetic", "file"])
def test_rows_pickle_as_where_they_are_and_copies_share_them(tmp_path: Path, dataset: str):
    where = lines(tmp_path / "train.jsonl", PAIRS * 1000) if dataset == "file" else dataset
    rows = rows_of(SOURCE, where, "train")
    frozen = pickle.dumps(rows)
    assert len(frozen) < 1000
    again: Rows[Pair] = pickle.loads(frozen)
    assert list(again) == list(rows)
    assert copy.deepcopy(rows) is rows


def test_a_file_is_opened_once_until_it_changes(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    first = rows_of(SOURCE, lines(path, PAIRS), "train")
    assert rows_of(SOURCE, str(path), "train")._read.__self__ is first._read.__self__
    (tmp_path / "new").write_text('{"question": "new"}')
    (tmp_path / "new").replace(path)
    assert rows_of(SOURCE, str(path), "train")[0] == Pair("new")
    assert first[0].answer == "0"  # who reads the old file goes on with it


@pytest.mark.parametrize("left", [b"", b'{"question": "shorter"}\n', b"x" * 10**6])
def test_a_file_that_is_written_over_while_in_use_is_a_sentence(tmp_path: Path, left: bytes):
    path = tmp_path / "train.jsonl"
    rows = rows_of(SOURCE, lines(path, PAIRS * 1000), "train")
    path.write_bytes(left)
    with pytest.raises(InvalidArgument, match="its file was written over while in use"):
        rows[3999]


# What is wrong with them


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ('{"question": "a"}\n\n{"answer": "b"}\n', "line 3", "missing required field `question`"),
        ('{"question": "a"}\n{"question": "b", "ans', "line 2", "truncated"),
        ('{"question": "a"}\n{"question": 3}\n', "line 2", "Expected `str`, got `int`"),
        ('{"question": "a"}\n\x00\x01\n', "line 2", "malformed"),
        ("[1, 2]\n", "line 1", "Expected `object`"),
    ],
)
def test_a_wrong_line_is_named_when_the_file_is_opened(tmp_path: Path, text: str, place: str, says: str):
    path = tmp_path / "train.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        rows_of(SOURCE, str(path), "train")
    assert f"{path}, {place}: " in str(caught.value)
    assert says in str(caught.value)
    assert "every row is an object with question" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train.jsonl", b"", "has no rows"),
        ("train.jsonl", b"\n\n", "has no rows"),
        ("train.json", b'[{"question": "a"}, {}]', "row 2: "),
        ("train.json", b'[{"question": "a"}, ', "a .json file is one array of objects"),
        ("train.json", b"[]", "has no rows"),
        ("train.parquet", b"PAR1", "parquet file"),
        (
            "train.csv",
            b"question\n",
            "'train.csv' is no file of rows",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, says: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        rows_of(SOURCE, str(tmp_path / name), "train")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_last_line_need_not_end(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a"}\r\n{"question": "b"}')
    assert [row.question for row in rows_of(SOURCE, str(path), "train")] == ["a", "b"]


@pytest.mark.parametrize(
    ("dataset", "split", "says"),
    [
        ("synthetic", "dev", "split='dev' is unknown; pairs has 'train', 'test'"),
        (3, "train", "dataset=3 is"),
        ("nowhere.jsonl", "train", "there is no such file or folder"),
        ("/nowhere/at/all", "train", "there is no such file or folder"),
        ("gsm8k", "train", "there is no such file or folder"),
    ],
)
def test_an_unknown_data_set_is_refused_with_the_three_ways(dataset: str, split: str, says: str):
    with pytest.raises((InvalidArgument, NotAvailable)) as caught:
        rows_of(SOURCE, dataset, split)
    assert says in str(caught.value)
    assert split == "dev" or "dataset='synthetic'" in str(caught.value)


def test_a_row_of_the_hub_that_lacks_a_field_is_named(monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list([{"text": "a"}])
    )
    with pytest.raises(InvalidArgument, match=r"other/rows \(train\), row 1: .*`question`"):
        rows_of(replace(SOURCE, hub="other/rows"), "other/rows", "train")


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "HUB_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not sources._answers(f"http://127.0.0.1:{silent.getsockname()[1]}")
