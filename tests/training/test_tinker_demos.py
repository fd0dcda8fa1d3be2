"""The demos that train language models: what their options mean, and that each runs end to end."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from absent import needs_module
from engines import client, ours
from ray_clusters import gone
from servers import TOKEN, running_server, until
from toy_images import images

import envweave_gym
from envweave_gym.cli import main
from envweave_gym.core.faults import Fault, FaultKind
from envweave_gym.data.toy_repo import toy_instances
from envweave_gym.training import (
    gsm8k_mcq_tinker,
    gsm8k_tinker,
    swebench_loc_mcq_tinker,
    swebench_patch_tinker,
)
from envweave_gym.training.tinker.demo_options import DemoOptions
from envweave_gym.training.tinker.local_server import LocalServer
from envweave_gym.training.tinker.training_run import LOCAL_MODELS

needs_module("tinker", "tinker")
__all__ = ["client", "images"]
DEMOS = [gsm8k_tinker, gsm8k_mcq_tinker, swebench_loc_mcq_tinker, swebench_patch_tinker]
TOY = [one.instance_id for one in toy_instances("test")]
ROW = {"question": "What is 1 + 1?", "answer": "It is <<1+1=2>>2.\n#### 2"}

Scored = Callable[..., dict[str, Any]]


# Options


@pytest.mark.parametrize("demo", DEMOS)
def test_rows_come_from_a_name_a_file_or_a_folder(demo: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW))
    cases = {
        "": (None, True),
        "synthetic": ("synthetic", True),
        str(tmp_path): (None, True),
        str(file): (str(file), False),
    }
    for data, (dataset, has_splits) in cases.items():
        options = demo.Options(data=data)
        assert options.arguments.get("dataset") == dataset
        assert options.has_splits == has_splits


def test_a_folder_is_named_to_servers_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVWEAVE_DATA", "/elsewhere")
    DemoOptions(data="synthetic").export_data_folder()
    assert os.environ["ENVWEAVE_DATA"] == "/elsewhere"
    (tmp_path / "rows.jsonl").touch()
    DemoOptions(data=str(tmp_path)).export_data_folder()
    assert os.environ["ENVWEAVE_DATA"] == str(tmp_path)


def test_the_engines_socket_is_for_containers_that_are_given_it() -> None:
    assert "docker_sock" not in DemoOptions(backend="docker").backend_arguments
    options = DemoOptions(backend="docker_http", docker_image="own", docker_sock=True)
    assert options.backend_arguments == {"backend": "docker_http", "image": "own", "docker_sock": True}
    with pytest.raises(ValueError, match="--docker-sock is for --backend docker, not 'subprocess'"):
        DemoOptions(backend="subprocess", docker_sock=True)


def test_smollm_is_a_model_of_the_local_server() -> None:
    options = DemoOptions(smollm=True)
    assert options.local
    assert options.model in LOCAL_MODELS
    with pytest.raises(ValueError, match="--local and --base-url name two servers"):
        DemoOptions(smollm=True, base_url="http://127.0.0.1:1")


def test_held_out_issues_are_those_with_wrong_options(tmp_path: Path) -> None:
    def row(number: int, repo: str) -> dict[str, Any]:
        return {**msgspec.to_builtins(toy_instances("dev")[0]), "instance_id": f"x__y-{number}", "repo": repo}

    rows = [row(1, "x/y"), row(2, "alone/z"), row(3, "x/y")]
    (tmp_path / "swebench_lite_dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVWEAVE_DATA", "")
        options = swebench_loc_mcq_tinker.Options(data=str(tmp_path))
        assert swebench_loc_mcq_tinker.held_out_resets(options) == [{"index": 0}, {"index": 2}]
    synthetic = swebench_loc_mcq_tinker.Options(data="synthetic")
    assert swebench_loc_mcq_tinker.held_out_resets(synthetic) == [{"index": 0}, {"index": 1}]
    elsewhere = swebench_loc_mcq_tinker.Options(backend="http://127.0.0.1:1")
    assert swebench_loc_mcq_tinker.held_out_resets(elsewhere) == []


def test_an_unknown_kind_of_patch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        swebench_patch_tinker.main(["--score", "best"])
    assert stopped.value.code == 2
    assert "--score best is unknown; give gold, wrong, model" in capsys.readouterr().err


@pytest.mark.parametrize("demo", DEMOS)
def test_without_data_or_key_one_line_says_what_to_give(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo.main(["--data", "synthetic", "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no Tinker API key; set TINKER_API_KEY")


# Patches that are scored without training


@pytest.fixture
def scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Scored:
    """A function that scores patches of the toy repository, and returns the results, as they are printed too."""

    def score(kind: str, **options: Any) -> dict[str, Any]:
        result = swebench_patch_tinker.train(
            swebench_patch_tinker.Options(
                data="synthetic", score=kind, timeout=60.0, out=str(tmp_path), **options
            )
        )
        printed = capsys.readouterr().out
        assert f"resolved: {result['resolved']} of {len(TOY)} tried, 0 lost" in printed
        assert list(result["rewards"]) == TOY
        assert all(name in printed for name in TOY)
        return result

    return score


def test_gold_and_wrong_patches_are_scored_in_the_sandbox(scored: Scored) -> None:
    needs_module("swebench", "swebench")
    assert scored("gold")["rewards"] == dict.fromkeys(TOY, 1.0)
    assert scored("wrong")["rewards"] == dict.fromkeys(TOY, 0.1)
    assert scored("wrong", reward="binary")["rewards"] == dict.fromkeys(TOY, 0.0)


def test_gold_and_wrong_patches_are_scored_in_containers_of_which_none_is_left(
    scored: Scored, client: Any, images: None
) -> None:
    assert scored("gold", evaluation="docker")["resolved"] == len(TOY)
    assert scored("wrong", evaluation="docker")["rewards"] == dict.fromkeys(TOY, 0.1)
    assert ours(client) == []


class Lost:
    """An environment whose steps are lost."""

    def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
        return "", {}

    def step(self, patch: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        fault = Fault(FaultKind.LOST, "the container was removed", retryable=True)
        return "", 0.0, False, True, {"fault": fault}

    def close(self) -> None:
        pass


def test_patches_that_could_not_be_tried_are_lost_and_not_unresolved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(envweave_gym, "make", lambda *args, **kwargs: Lost())
    words = ["--score", "gold", "--data", "synthetic", "--evaluation", "local", "--out", str(tmp_path)]
    assert swebench_patch_tinker.main(words) == 1
    printed = capsys.readouterr()
    assert f"resolved: 0 of 0 tried, {len(TOY)} lost" in printed.out
    assert all(f"{name}  the container was removed" in printed.out for name in TOY)
    assert f"{len(TOY)} of {len(TOY)} patches could not be tried; the last: the container" in printed.err


# Whole runs, on a local server with the tiny model

SMALL: dict[str, Any] = {
    "data": "synthetic",
    "episodes": 8,
    "group": 2,
    "groups": 2,
    "num_envs": 2,
    "eval_every": 2,
    "eval_episodes": 2,
    "max_tokens": 4,
    "max_prompt_tokens": 200,
}


@pytest.fixture(scope="module")
def tinker_url() -> Iterator[str]:
    """The URL of a server whose key is in the environment."""
    for module in ("torch", "flask", "safetensors", "jinja2"):
        needs_module(module, "tinker-server")
    with LocalServer("--tiny", "--threads=1") as server, pytest.MonkeyPatch.context() as patch:
        server.wait()
        patch.setenv("TINKER_API_KEY", server.api_key)
        yield server.base_url


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("demo", DEMOS)
def test_a_demo_trains_evaluates_and_writes_what_it_did(demo: Any, tinker_url: str, tmp_path: Path) -> None:
    if demo is swebench_patch_tinker:
        needs_module("swebench", "swebench")
    result = demo.train(demo.Options(**SMALL, base_url=tinker_url, out=str(tmp_path)))
    assert (result["updates"], result["episodes"], result["faults"]) == (2, 8, 0)
    rows = rows_of(folder := tmp_path / demo.Options.demo)
    assert [row["episodes"] for row in rows] == [0, 4, 8]
    assert [("held_out_success" in row) for row in rows] == [True, False, True]
    # Four rows of an update, with prompts of at most 200 tokens and replies of at most 4.
    assert all(row["tokens"] <= 4 * 204 and row["lost_episodes"] == 0 for row in rows[1:])
    page = (folder / "transcripts.html").read_text()
    if demo in (swebench_loc_mcq_tinker, swebench_patch_tinker):
        assert "[…]" in page
    assert (folder / "metrics.png").stat().st_size > 1000


def played_elsewhere(backend: str, tinker_url: str, folder: Path) -> None:
    """Train a demo whose environments are on this backend."""
    options = gsm8k_mcq_tinker.Options(**SMALL, base_url=tinker_url, out=str(folder), backend=backend)
    assert gsm8k_mcq_tinker.train(options)["faults"] == 0


def test_a_demo_plays_in_processes(tinker_url: str, tmp_path: Path) -> None:
    played_elsewhere("subprocess", tinker_url, tmp_path)


def test_a_demo_plays_in_containers_of_which_none_is_left(
    tinker_url: str, tmp_path: Path, client: Any
) -> None:
    played_elsewhere("docker_http", tinker_url, tmp_path)
    assert ours(client) == []


def test_a_demo_plays_on_a_server_at_a_url_and_leaves_no_session(
    tinker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server("envweave/GSM8KMCQ-v0") as server:
        monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
        played_elsewhere(server.url, tinker_url, tmp_path)
        until(lambda: server.gauge("envweave_sessions") == 0)


def test_a_demo_plays_in_actors_of_ray_of_which_none_is_left(tinker_url: str, tmp_path: Path) -> None:
    needs_module("ray", "ray")
    played_elsewhere("ray", tinker_url, tmp_path)
    assert gone()


def test_patches_of_the_model_are_scored_in_the_sandbox(
    scored: Scored, tinker_url: str, tmp_path: Path
) -> None:
    needs_module("swebench", "swebench")
    result = scored("model", base_url=tinker_url, max_tokens=16, num_envs=2)
    assert result["rewards"] == dict.fromkeys(TOY, 0.0)
    page = (tmp_path / "swebench_patch_scores" / "greedy.html").read_text()
    first_lines = [one.problem_statement.splitlines()[0] for one in toy_instances("test")]
    assert [line for line in first_lines if html.escape(line) not in page] == []


def test_patches_of_the_model_are_scored_in_containers_of_which_none_is_left(
    scored: Scored, tinker_url: str, client: Any, images: None
) -> None:
    result = scored("model", base_url=tinker_url, max_tokens=16, evaluation="docker")
    assert result["rewards"] == dict.fromkeys(TOY, 0.0)
    assert ours(client) == []


def test_a_demo_starts_a_server_of_its_own_and_ends_it(tinker_url: str, tmp_path: Path) -> None:
    words = ["--local", "--episodes=2", "--group=2", "--groups=1", "--eval-every=0", "--max-tokens=2"]
    assert main(["train", "gsm8k-mcq", "--data=synthetic", "--out", str(tmp_path), *words]) == 0
    assert [row["episodes"] for row in rows_of(tmp_path / "gsm8k_mcq")][-1] == 2
    running = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    assert [line for line in running if str(tmp_path) in line] == []


@pytest.mark.parametrize("demo", DEMOS)
def test_a_folder_or_file_that_is_not_there_is_a_wrong_option(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for name, words in (("missing.jsonl", "there is no such file"), ("empty", "has no file of rows")):
        with pytest.raises(SystemExit) as stopped:
            demo.main(["--data", str(tmp_path / name)])
        assert stopped.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --data {tmp_path / name}: ")
        assert words in line
    monkeypatch.chdir(tmp_path)
    for name in ("./data", "../data", "mydata", "mydata/", "a/b/c", "some/rows.jsonl"):
        with pytest.raises(SystemExit) as stopped:
            demo.main(["--data", name])
        assert stopped.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --data {name}: there is no such file or folder")
    assert demo.Options(data="owner/name.v2").dataset == {"dataset": "owner/name.v2"}
