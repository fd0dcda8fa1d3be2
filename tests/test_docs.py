"""The code blocks of README and docs run as they stand, each page from top to bottom in one process."""

import contextlib
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
from engines import client
from nbclient import NotebookClient

from envweave_gym.cli import main

__all__ = ["client"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ROOMS = ("envweave_gym", "envweave_gym_server")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# These pages need packages that live in venvs of their own; `make trainers` runs what they show.
ELSEWHERE = {"trainers.md"}
# A block below <!-- docker --> needs an engine; one below <!-- notest --> is not run.
BLOCK = re.compile(r"(?<!-->\n)^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCKER_BLOCK = re.compile(r"^<!-- docker -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BACKEND = re.compile(r'backend="(docker|kubernetes|ray)"')
EXTRA_ROW = re.compile(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def pages_with_code() -> list[Path]:
    return [page for page in PAGES if page.name not in ELSEWHERE and BLOCK.search(page.read_text())]


def test_the_code_about_containers_runs(client: Any, tmp_path: Path):
    page = (ROOT / "docs" / "containers.md").read_text()
    (code,) = DOCKER_BLOCK.findall(page)
    run(code, tmp_path)


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path):
    run("\n\n".join(BLOCK.findall(page.read_text())), tmp_path)


def run(code: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


DEMO = re.compile(r"^uv run -m (envweave_gym\.examples\.\w+)((?:.*\\\n)*.*)$", re.MULTILINE)


def test_the_demos_of_older_documents_take_their_options(capsys: pytest.CaptureFixture[str]):
    commands = DEMO.findall((ROOT / "docs" / "coming-from.md").read_text())
    assert len(commands) == 11
    for module, arguments in commands:
        with pytest.raises(SystemExit):
            importlib.import_module(module).main(["--help"])
        options = re.findall(r"--[a-z-]+", capsys.readouterr().out)
        assert set(re.findall(r"--[a-z-]+", arguments)) <= {*options}, module


TRAINING = re.compile(r"^envweave (train [a-z0-9-]+|tinker serve)((?:.*\\\n)*.*)$", re.MULTILINE)


def test_the_commands_that_train_and_serve_language_models_have_these_options(
    capsys: pytest.CaptureFixture[str],
):
    pages = [ROOT / "README.md", ROOT / "docs" / "llm_rl.md", ROOT / "docs" / "tinker_server.md"]
    commands = {found for page in pages for found in TRAINING.findall(page.read_text())}
    assert len({command for command, _ in commands}) > 3
    for command, arguments in commands:
        with contextlib.suppress(SystemExit):
            main([*command.split(), "--help"])
        options = re.findall(r"--[a-z-]+", capsys.readouterr().out)
        assert set(re.findall(r"--[a-z-]+", arguments)) <= {*options}, command


def test_generated_pages_are_up_to_date():
    command = [sys.executable, ROOT / ".ci" / "derived_docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_empty_line_ends_each_table(page: Path):
    assert re.findall(r"^\|.*\|\n(?=[^|\n])", page.read_text(), re.MULTILINE) == []


def test_the_architecture_page_names_files_and_methods_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    files = re.findall(r"`([\w/]+\.py)`", page)
    ends = [f"/{path.relative_to(ROOT)}" for path in [*sources, ROOT / "envweave_gym_pytest.py"]]
    assert [name for name in files if not any(end.endswith(f"/{name}") for end in ends)] == []
    texts = [path.read_text() for path in sources]
    for kind, member in re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)`", page):
        homes = [text for text in texts if re.search(rf"^class {kind}\b", text, re.M)]
        known = rf"^    (?:def {member}\(|{member}:)"
        assert any(re.search(known, text, re.M) for text in homes), f"{kind}.{member}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_empty(page: Path):
    assert len(page.read_text().split()) > 30


def test_the_readme_lists_every_id():
    from envweave_gym.registry.catalog import CARDS

    text = (ROOT / "README.md").read_text()
    assert [card.id for card in CARDS if f"`{card.id}`" not in text] == []


def test_the_readme_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = {
        name for row in EXTRA_ROW.findall((ROOT / "README.md").read_text()) for name in row.split("`")[1::2]
    }
    assert rows == set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_shows_a_backend_names_its_extra(page: Path):
    text = page.read_text()
    if page.name not in {"architecture.md", "benchmarks.md"}:
        assert "extra" in text or "envweave-gym[" in text or not BACKEND.search(text)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert "error" not in {output.output_type for output in outputs}


def test_notebooks_are_stored_without_outputs():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
