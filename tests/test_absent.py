"""What a machine lacks skips tests, each with one line; with CI set it fails them."""

from __future__ import annotations

from pathlib import Path

import pytest
from absent import NO_COMMAND, absent, needs_command, needs_data, needs_module, summary


def test_what_is_there_is_used() -> None:
    needs_command("sh")
    assert needs_module("json").loads("1") == 1


@pytest.mark.parametrize(
    ("lacking", "line"),
    [
        (lambda: absent("no engine\nanswers"), "no engine answers"),
        (
            lambda: needs_command("no-such-command"),
            "there is no command no-such-command; to run it: apt-get install no-such-command",
        ),
        (
            lambda: needs_module("no_such_module", "train"),
            "no_such_module is not installed; to run it: pip install -c constraints.txt -e '.[train]'",
        ),
    ],
)
def test_a_missing_requirement_skips_with_one_line_and_fails_in_ci(
    lacking: object, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(lacking)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as skipped:
        lacking()
    assert skipped.value.msg == line
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="with CI set nothing is skipped"):
        lacking()


def test_real_data_may_be_lacking_in_ci_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("ENVWEAVE_DATA", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text("")
    assert needs_data("rows.jsonl") == tmp_path / "rows.jsonl"
    with pytest.raises(pytest.skip.Exception, match=r"names no folder with none\.jsonl"):
        needs_data("none.jsonl")
    monkeypatch.delenv("ENVWEAVE_DATA")
    with pytest.raises(pytest.skip.Exception, match=r"names no folder with rows\.jsonl"):
        needs_data("rows.jsonl")


def test_skips_are_counted_by_the_command_that_enables_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    lines: list[str] = []
    for lacking in [lambda: needs_command("no-such"), lambda: needs_module("no_such", "train")] * 2:
        with pytest.raises(pytest.skip.Exception) as skipped:
            lacking()
        lines.append(f"Skipped: {skipped.value.msg}")
    other = "Skipped: there is no command no-other; to run it: apt-get install no-such"
    rows = summary([*lines, other, "odd"])
    assert [row.split()[0] for row in rows] == ["3", "2", "1"]
    assert "apt-get install no-such" in rows[0]
    assert "there is no command no-such (and 1 other reasons)" in rows[0]
    assert "pip install" in rows[1]
    assert "[train]" in rows[1]
    assert NO_COMMAND in rows[2]
