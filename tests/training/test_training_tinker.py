"""The loop with the SDK and the local server: it learns, resumes after kills, and refuses what cannot be at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tinker_servers import digest, tinker_server

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable
from envweave_gym.training import kuhn_tinker
from envweave_gym.training.tinker import TinkerOptions, train, waiting
from envweave_gym.training.tinker.connection import Connection
from envweave_gym.training.tinker.grpo import Trainer
from envweave_gym.training.tinker.local_server import LocalServer

__all__ = ["tinker_server"]

ID = "envweave/PickLetter-v0"
SHORT = {
    "groups": 4,
    "group": 4,
    "episodes": 96,
    "max_tokens": 4,
    "learning_rate": 2e-3,
    "eval_every": 0,
    "save_every": 2,
}
"""Six updates of 16 episodes, with a checkpoint after every second one."""


def options(server: LocalServer, folder: Path, **others: Any) -> TinkerOptions:
    return TinkerOptions(**{**SHORT, "base_url": server.base_url, "out": str(folder), **others})


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "tinker" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def until_rows(folder: Path, count: int, alive: Any) -> None:
    while len(rows(folder)) < count:
        assert alive()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(tinker_server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the adapter of a short run."""
    result = train(ID, options(tinker_server, tmp_path_factory.mktemp("run")))
    return digest(tinker_server, result["checkpoint"])


@pytest.mark.parametrize("seed", range(3))
def test_reward_on_a_choice_of_four_rises_from_chance_to_nine_in_ten(
    seed: int, tinker_server: LocalServer, tmp_path: Path
):
    settings = {"groups": 16, "group": 8, "episodes": 16 * 8 * 40, "eval_every": 5, "eval_episodes": 32}
    chosen = options(tinker_server, tmp_path, seed=seed, target_success_rate=0.9, **settings)
    result = train(ID, chosen)
    assert result["success before training"] <= 0.6
    assert result["success on held-out tasks"] >= 0.9
    done = rows(tmp_path)
    assert max(row["kl"] for row in done if "kl" in row) < 1e-3
    assert done[-1]["reward"] > done[1]["reward"]
    for name in ("metrics.png", "transcripts.html", "state.json"):
        assert (tmp_path / "tinker" / name).stat().st_size > 0
    assert "pick " in (tmp_path / "tinker" / "transcripts.html").read_text()


def test_a_run_whose_client_was_killed_resumes_to_the_same_adapter(
    tinker_server: LocalServer, uninterrupted: str, tmp_path: Path
):
    command = [sys.executable, "-m", "envweave_gym.training.tinker", "--env", ID, "--out", str(tmp_path)]
    command += ["--base-url", tinker_server.base_url]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in SHORT.items()]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until_rows(tmp_path, 4, lambda: killed.poll() is None)
    killed.kill()
    killed.wait()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    state = json.loads((tmp_path / "tinker" / "state.json").read_text())
    assert state["update"] == 6
    assert digest(tinker_server, state["checkpoints"]["all"]) == uninterrupted
    assert [row["update"] for row in rows(tmp_path)] == list(range(7))


def test_a_run_whose_server_was_killed_goes_on_from_the_last_checkpoint_to_the_same_adapter(
    tinker_server: LocalServer, uninterrupted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results: list[Any] = []
    running = threading.Thread(target=lambda: results.append(train(ID, options(tinker_server, tmp_path))))
    running.start()
    until_rows(tmp_path, 4, running.is_alive)
    tinker_server.kill()
    tinker_server.restart()
    running.join(120)
    assert not running.is_alive()
    assert digest(tinker_server, results[0]["checkpoint"]) == uninterrupted
    assert [row["update"] for row in rows(tmp_path)] == list(range(7))
    assert "going on from update" in capsys.readouterr().err


def test_an_environment_of_numbers_and_discrete_actions_is_trained_on(
    tinker_server: LocalServer, tmp_path: Path
):
    sizes = {"groups": 4, "group": 8, "episodes": 4 * 8 * 6, "max_turns": 4, "save_every": 0}
    result = train("CartPole-v1", options(tinker_server, tmp_path, **sizes))
    assert (result["updates"], result["faults"]) == (6, 0)
    first, last = rows(tmp_path)[1], rows(tmp_path)[-1]
    # An episode has four turns unless a reply names no action; each turn earns 1.
    assert last["reward"] > first["reward"]
    assert last["invalid_replies"] < first["invalid_replies"]
    assert (
        "Answer with one whole number from 0 to 1" in (tmp_path / "tinker" / "transcripts.html").read_text()
    )


class Crashing(Trainer):
    """A run that an error ends after its first update."""

    def _one_update(self) -> None:
        super()._one_update()
        raise MemoryError


def test_a_run_that_crashed_before_its_first_checkpoint_does_not_resume_an_earlier_one(
    tinker_server: LocalServer, tmp_path: Path
):
    train(ID, options(tinker_server, tmp_path, episodes=32))
    with pytest.raises(MemoryError), Crashing(ID, options(tinker_server, tmp_path)) as trainer:
        trainer.run()
    assert [row["update"] for row in rows(tmp_path)] == [0, 1]
    with pytest.raises(InvalidArgument, match=r"has no state\.json"):
        train(ID, options(tinker_server, tmp_path, resume=True))


def test_a_state_whose_metrics_are_of_another_run_is_refused(tinker_server: LocalServer, tmp_path: Path):
    train(ID, options(tinker_server, tmp_path, episodes=32))
    metrics = tmp_path / "tinker" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().split("\n")[0] + "\n")
    with pytest.raises(InvalidArgument, match=r"metrics\.jsonl has 1 of its 3 rows: they are of two runs"):
        train(ID, options(tinker_server, tmp_path, episodes=64, resume=True))
    assert len(rows(tmp_path)) == 1


def test_a_trained_policy_plays_with_other_settings_and_its_records_stay_as_they_are(
    tinker_server: LocalServer, tmp_path: Path
):
    train(ID, options(tinker_server, tmp_path, episodes=32), held_out={"max_episode_steps": 1})
    before = {path.name: path.read_bytes() for path in (tmp_path / "tinker").iterdir()}
    chosen = options(tinker_server, tmp_path, group=2, num_envs=2, resume=True)
    with Trainer(ID, chosen, only_plays=True) as trainer:
        played = trainer.play_greedily([{}, {}])
    assert [one.fault for one in played.episodes] == [None, None]
    after = {path.name: path.read_bytes() for path in (tmp_path / "tinker").iterdir()}
    assert {*after} - {*before} == {"greedy.html"}
    assert before == {name: content for name, content in after.items() if name in before}


def test_ppo_in_several_steps_and_another_number_of_environments_are_deterministic_too(
    tinker_server: LocalServer, tmp_path: Path
):
    found = set[str]()
    for num_envs in (3, 16):
        chosen = options(tinker_server, tmp_path, loss="ppo", substeps=2, num_envs=num_envs, episodes=48)
        found.add(digest(tinker_server, train(ID, chosen)["checkpoint"]))
    assert len(found) == 1
    assert all("clip_fraction" in row for row in rows(tmp_path)[1:])


def test_two_players_of_a_game_have_an_adapter_each(tinker_server: LocalServer, tmp_path: Path):
    chosen = kuhn_tinker.Options(
        base_url=tinker_server.base_url,
        out=str(tmp_path),
        groups=4,
        group=4,
        episodes=32,
        adapters="role",
        eval_every=2,
    )
    result = kuhn_tinker.train(chosen)
    state = json.loads((tmp_path / "kuhn_tinker" / "state.json").read_text())
    assert set(state["checkpoints"]) == {"player_0", "player_1"}
    assert 0 < result["NashConv"] < 2
    policy = json.loads((tmp_path / "kuhn_tinker" / "policy.json").read_text())
    assert len(policy) == 12
    assert all(0 < chance < 1 for chance in policy.values())


def test_ctrl_c_ends_a_run_with_a_checkpoint_and_without_a_traceback(
    tinker_server: LocalServer, uninterrupted: str, tmp_path: Path
):
    command = [sys.executable, "-m", "envweave_gym.training.tinker", "--env", ID, "--out", str(tmp_path)]
    command += ["--base-url", tinker_server.base_url]
    settings = {**SHORT, "save_every": 0}
    command += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stopped:
        until_rows(tmp_path, 2, lambda: stopped.poll() is None)
        with pytest.raises(InvalidArgument, match=rf"another run \(process {stopped.pid}\) writes to"):
            train(ID, options(tinker_server, tmp_path))
        stopped.send_signal(signal.SIGINT)
        _, printed = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, printed
    assert "Traceback" not in printed
    saved = json.loads((tmp_path / "tinker" / "state.json").read_text())["update"]
    assert printed.endswith(f"--resume goes on from update {saved}\n")
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    state = json.loads((tmp_path / "tinker" / "state.json").read_text())
    assert digest(tinker_server, state["checkpoints"]["all"]) == uninterrupted


def test_a_server_that_hangs_is_reported_and_its_run_goes_on_when_it_answers_again(
    tinker_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reported, hung = list[str](), threading.Event()

    class Reporting(Trainer):
        def _report(self, line: str) -> None:
            reported.append(line)
            if line.startswith("waiting for"):
                hung.set()

    monkeypatch.setattr(waiting, "FIRST_EXPECTED_S", 0.0)
    monkeypatch.setattr("envweave_gym.training.tinker.connection.FIRST_EXPECTED_S", 0.0)
    results: list[Any] = []

    def run() -> None:
        with Reporting(ID, options(tinker_server, tmp_path)) as trainer:
            results.append(trainer.run())

    running = threading.Thread(target=run)
    running.start()
    until_rows(tmp_path, 2, running.is_alive)
    pid = tinker_server.pid
    assert pid is not None
    hung.clear()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert hung.wait(20)
    finally:
        os.kill(pid, signal.SIGCONT)
    running.join(120)
    assert results[0]["updates"] == 6
    assert any(f"waiting for the Tinker server at {tinker_server.base_url}: " in line for line in reported)


# What is refused before training


def refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, **others: Any) -> EnvweaveError:
    """Return the error of a run that cannot begin, which must come within three seconds."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TINKER_API_KEY", key) if key else monkeypatch.delenv("TINKER_API_KEY")
    started = time.monotonic()
    with pytest.raises(EnvweaveError) as caught:
        train(ID, TinkerOptions(out=str(tmp_path), **others))
    assert time.monotonic() - started < 3
    return caught.value


def test_a_missing_or_malformed_key_is_refused(
    tinker_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    missing = refusal(monkeypatch, tmp_path, "", base_url=tinker_server.base_url)
    assert isinstance(missing, InvalidArgument)
    assert "set TINKER_API_KEY" in str(missing)
    monkeypatch.setenv("TINKER_API_KEY", "x")
    malformed = refusal(monkeypatch, tmp_path, "sk-123", base_url=tinker_server.base_url)
    assert "begins with tml-" in str(malformed)
    assert "sk-123" not in str(malformed)


def test_a_wrong_key_is_refused_with_the_words_of_the_server(
    tinker_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    wrong = refusal(monkeypatch, tmp_path, "tml-wrong", base_url=tinker_server.base_url)
    assert isinstance(wrong, InvalidArgument)
    assert "refuses the key" in str(wrong)


def test_a_server_that_is_not_there_is_named(
    tinker_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    nobody = refusal(monkeypatch, tmp_path, tinker_server.api_key, base_url="http://127.0.0.1:9")
    assert isinstance(nobody, NotAvailable)
    assert "no Tinker server answers at http://127.0.0.1:9" in str(nobody)
    nonsense = refusal(monkeypatch, tmp_path, tinker_server.api_key, base_url="nonsense")
    assert "give http://HOST:PORT" in str(nonsense)


def test_an_unknown_model_is_refused_with_those_that_are_served(
    tinker_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    names = [*Connection(tinker_server.base_url).models]
    key, url = tinker_server.api_key, tinker_server.base_url
    unknown = refusal(monkeypatch, tmp_path, key, base_url=url, model="meta/None")
    assert f"there are {names[0]}" in str(unknown)
    not_local = refusal(monkeypatch, tmp_path, key, local=True, model="meta/None")
    assert "--local has no model 'meta/None'; there are envweave/tiny" in str(not_local)
