"""``envweave atlas``: options, files, and what it says when there is nothing to survey."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

import pytest

from envweave_gym.cli import USAGE, main
from envweave_gym.cli import atlas as atlas_command
from envweave_gym.testing.atlas.atlas_file import Atlas
from envweave_gym.testing.atlas.atlas_page import filled_page
from envweave_gym.testing.atlas.run_file import suites_in
from envweave_gym.testing.atlas.script_composition import script_of


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no virtual environment of this user be found."""
    monkeypatch.setenv("ENVWEAVE_SUITES", str(tmp_path / "cache"))
    monkeypatch.delenv("ENVWEAVE_INSTALL", raising=False)


def test_packages_of_this_python_are_surveyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "found"
    words = ["atlas", "gymnasium", "--here", "--ids", "CartPole-v1", "--out", str(out)]
    assert main([*words, "--rule", "closes_twice"]) == 0
    assert main([*words, "--rule", "closes_twice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gymnasium CartPole-v1 (gym): 0 findings" in lines[1]
    assert "1 chosen, 0 to be tried" in lines[3]
    text = (out / "atlas.md").read_text()
    assert "| gymnasium 1." in text
    assert "`closes_twice`" in text
    assert len((out / "atlas.jsonl").read_text().splitlines()) == 3


def test_a_suite_that_is_not_installed_says_which_command_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["atlas", "minigrid==3.2.0", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "envweave atlas minigrid==3.2.0 --install" in error
    assert "install=True" not in error
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


def test_paths_of_a_named_suite_are_relative_to_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    package, elsewhere = tmp_path / "config" / "envweave" / "package", tmp_path / "elsewhere"
    for folder in (package, elsewhere):
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text('[project]\nname = "toy"\nversion = "1.0"\n')
    (package.parent / "suites.toml").write_text('[suites.toys]\nrequirements = ["./package"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(elsewhere)
    assert main(["atlas", "toys", "--with", "."]) == 1
    assert f"toys needs {package}, {elsewhere}, msgspec" in capsys.readouterr().err


def described(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def test_one_file_describes_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = described(
        tmp_path,
        '[suites.one]\nrequirements = ["one==1.0"]\nlimit = 3\nids = ["One/*"]\n'
        '[suites.two]\nrequirements = ["two==2.0"]\nnote = "It needs a display."\n',
    )
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- begin of the atlas -->\n\n<!-- end of the atlas -->\n")
    words = ["atlas", "--from", str(file), "--out", str(tmp_path / "out"), "--page", str(page)]
    assert main(words) == 1  # nothing is installed without consent
    assert f"envweave atlas --from {file} --install" in capsys.readouterr().err
    text = page.read_text()
    for name in ("one", "two"):
        assert f"- **{name}**: the suite {name} of" in text
    assert len(page.with_suffix(".jsonl").read_text().splitlines()) == 2


def test_a_run_that_is_interrupted_leaves_the_page_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(atlas_command, "_survey_all", interrupted)
    file = described(tmp_path, '[suites.one]\nrequirements = ["one==1.0"]\n')
    page = tmp_path / "page.md"
    page.write_text("<!-- begin of the atlas -->\nold\n<!-- end of the atlas -->\n".join(["# Page\n\n", ""]))
    before, out = page.read_text(), tmp_path / "out"
    words = ["atlas", "--from", str(file), "--out", str(out), "--page", str(page)]
    with suppress(KeyboardInterrupt):
        main(words)
    assert (out / "atlas.md").exists()
    assert page.read_text() == before
    assert not page.with_suffix(".jsonl").exists()


def test_the_run_of_the_documentation_is_well_formed():
    docs = Path(__file__).parents[2] / "docs"
    assert len(suites_in(docs / "atlas.toml")) >= 12
    assert filled_page(docs / "atlas.md", None) == (docs / "atlas.md").read_text()
    if (docs / "atlas.jsonl").exists():
        atlas = Atlas(docs / "atlas.jsonl")
        assert filled_page(docs / "atlas.md", atlas) == (docs / "atlas.md").read_text()


def test_the_script_in_the_documentation_is_as_the_command_writes_it():
    text = (Path(__file__).parents[2] / "docs" / "atlas.md").read_text()
    found = "after other episodes it plays seed 2 differently: the observation of move 1 differs"
    script = script_of("same_seed_again", "gym", "BipedalWalker-v3", moves=1, finding=found)
    shown = text.partition("```python\n")[2].partition("```")[0]
    assert ast.dump(ast.parse(shown)) == ast.dump(ast.parse(script))


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        ("[suites.one]\n", [], "requirements"),
        ('[suites.one]\nrequirements = ["one"]\nlimits = 3\n', [], "limits"),
        ("[suites", [], "does not describe a run"),
        ('[suites.one]\nrequirements = ["one"]\n', ["on"], "'one'"),
        ('[suites.one]\nrequirements = ["one"]\n', ["--ids", "A*"], "--ids"),
        ('[suites.one]\nrequirements = ["--index-url x"]\n', [], "option"),
        ('[suites.one]\nrequirements = ["one"]\n', ["--page", "no/such/page.md"], "begin of the atlas"),
    ],
)
def test_a_file_that_does_not_describe_a_run_is_refused(
    text: str, words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = described(tmp_path, text)
    assert main(["atlas", *words, "--from", str(file), "--out", str(tmp_path / "out")]) == USAGE
    assert error in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gymnasium", "--here", "--rule", "same_sed"], "same_seed"),
        (["gymnasium", "--here", "--jobs", "0"], "above 0"),
        (["gymnasium", "--here", "--limit", "many"], "above 0"),
        ([], "SUITE"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    assert main(["atlas", *words]) == USAGE
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_a_package_that_is_not_here_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["atlas", "no-such-suite", "--here", "--out", str(tmp_path)]) == 1
    assert "no-such-suite" in capsys.readouterr().err
