"""``envweave list``: every ID, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import installed_plug_ins, run

from envweave_gym.cli import main
from envweave_gym.cli.tables import table
from envweave_gym.registry.catalog import cards


def test_list_shows_every_card_with_its_line():
    done = run("list")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split()[:3] == ["ID", "KIND", "EXTRA"]
    assert len(lines) == 1 + len(cards())
    for card in cards().values():
        [line] = [line for line in lines if line.startswith(card.id + " ")]
        assert line.endswith(card.doc)


def test_list_as_json_is_one_document(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["id"]: row for row in json.loads(out)}
    assert err == ""
    assert set(rows) == set(cards())
    assert rows["envweave/LineWorld-v0"]["native_vector"] is True
    assert rows["envweave/Counter-v0"] == {
        "id": "envweave/Counter-v0",
        "kinds": ["gym"],
        "native_vector": False,
        "extra": None,
        "missing": [],
        "doc": cards()["envweave/Counter-v0"].doc,
    }


def test_bare_ids_for_completion_and_the_module_as_program():
    done = subprocess.run(
        [sys.executable, "-m", "envweave_gym", "list", "--ids"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == sorted(cards())


@pytest.mark.parametrize("width", [30, 60, 100])
def test_list_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ids = max(map(len, cards())) + len("  aec, parallel  openspiel (missing)")
    assert max(map(len, lines)) <= max(width, ids)
    assert " ".join(" ".join(lines).split()).count("runners move at once along a line") == 1


def test_a_row_with_an_empty_last_cell_stays():
    assert table([("a", "b"), ("long", "")], 80) == "a     b\nlong"


def test_list_shows_the_ids_of_plug_ins_and_what_they_lack(tmp_path: Path):
    done = run("list", PYTHONPATH=installed_plug_ins(tmp_path))
    [line] = [line for line in done.stdout.splitlines() if line.startswith("demo/Robot-v0")]
    assert line.split() == ["demo/Robot-v0", "gym", "arm", "(missing)", "A", "robot."]
