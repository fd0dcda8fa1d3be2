"""The training loop without a server: what it does with lost episodes, lost servers and environments."""

from __future__ import annotations

import errno
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from absent import needs_module
from fake_tinker import Characters, FakeClient, sampler

import envweave_gym
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.training.options import parse_options, run_demo
from envweave_gym.training.tinker import TinkerOptions, grpo, training_run
from envweave_gym.training.tinker.connection import RequestRefused, ServerLost
from envweave_gym.training.tinker.learner import Learner
from envweave_gym.training.tinker.run_state import RunState

needs_module("tinker", "tinker")
needs_module("jinja2")

ID = "envweave/PickLetter-v0"


class Connected:
    """The part of a connection that the loop calls itself."""

    local = None

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.deleted: list[str] = []
        self.reconnected = 0

    def choose_model(self, *args: Any) -> str:
        return "model"

    def context_of(self, model: str) -> None:
        return None

    def reconnect(self, *args: Any) -> None:
        self.reconnected += 1

    def delete_checkpoint(self, path: str) -> None:
        self.deleted.append(path)

    def close(self, status: str) -> None:
        """Nothing is open."""


class Learned:
    """An adapter that answers ``A`` and learns nothing."""

    def __init__(self, connection: Any, options: Any, model: str, name: str, path: str = "") -> None:
        self.name, self.path = name, path

    def tokenizer(self) -> Characters:
        return Characters()

    def sampler(self, stop: Any, temperature: float) -> Any:
        return sampler(FakeClient(lambda *args: "A"))

    def update(self, rows: Any, rate: float) -> list[Any]:
        return []

    def save(self, name: str) -> str:
        return f"tinker://{self.name}/weights/{name}"

    def save_for_sampling(self, name: str) -> str:
        return f"tinker://{self.name}/sampler_weights/{name}"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "Connection", Connected)
    monkeypatch.setattr(training_run, "Learner", Learned)


def options(folder: Path, **others: Any) -> TinkerOptions:
    small = {"group": 2, "groups": 2, "episodes": 8, "num_envs": 2, "eval_every": 0, "max_tokens": 4}
    return TinkerOptions(**{**small, "out": str(folder), **others})


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The environments that are open."""
    made: list[Any] = []
    make: Callable[..., Any] = envweave_gym.make

    def watched(*args: Any, **settings: Any) -> Any:
        env = make(*args, **settings)
        made.append(env)
        close = env.close

        def closed() -> None:
            close()
            made.remove(env)

        env.close = closed
        return env

    monkeypatch.setattr(envweave_gym, "make", watched)
    return made


@pytest.mark.usefixtures("offline", "registries")
def test_environments_that_never_play_are_closed_too(tmp_path: Path, environments: list[Any]):
    with grpo.Trainer(ID, options(tmp_path), None, {"max_episode_steps": 1}):
        assert len(environments) == 2
    assert environments == []
    grpo.train(ID, options(tmp_path), held_out={"max_episode_steps": 1})
    assert environments == []


@pytest.mark.usefixtures("offline", "registries")
def test_an_adapter_for_each_role_serves_an_id_of_one_agent_too(tmp_path: Path):
    result = grpo.train(ID, options(tmp_path, adapters="role"))
    assert result["faults"] == 0
    assert result["weights"] == "tinker://agent/sampler_weights/final"


@pytest.mark.usefixtures("offline", "registries")
def test_an_update_whose_episodes_were_all_lost_is_no_failure(tmp_path: Path):
    class Always(gymnasium_env()):
        crashes = False

        def step(self, action: Any) -> Any:
            if Always.crashes:
                raise OSError("disk full")
            return "", 1.0, True, False, {}

    class Crashing(grpo.Trainer):
        def _one_update(self) -> None:
            Always.crashes = self.updates == 1
            super()._one_update()

    envweave_gym.register("local://always", factory=Always)
    chosen = options(tmp_path, groups=1, episodes=4, attempts=1)
    with Crashing("local://always", chosen) as trainer:
        result = trainer.run()
    assert [row.get("lost_episodes") for row in trainer.log.rows] == [None, 0, 2]
    assert result["success in training"] == 1.0


def gymnasium_env() -> Any:
    import gymnasium

    class Base(gymnasium.Env[str, str]):
        observation_space = action_space = envweave_gym.Unicode(64)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            return "go", {}

    return Base


@pytest.mark.usefixtures("offline", "registries")
def test_a_server_that_is_lost_at_the_end_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failures = [ServerLost("the server is gone")]
    save = Learned.save_for_sampling

    def fails_once(self: Learned, name: str) -> str:
        if failures:
            raise failures.pop()
        return save(self, name)

    monkeypatch.setattr(Learned, "save_for_sampling", fails_once)
    with grpo.Trainer(ID, options(tmp_path)) as trainer:
        result = trainer.run()
    assert trainer.connection.reconnected == 1
    assert result["updates"] == 2
    assert trainer.learners["all"].path == "tinker://all/weights/update-000002"


def test_a_checkpoint_that_the_server_does_not_have_is_a_wrong_argument():
    class Forgot(Connected):
        service: Any = type("Service", (), {"create_training_client_from_state_with_optimizer": None})

        def call(self, function: Any, path: str, *, what: str) -> Any:
            raise ServerLost(f"the Tinker server has forgotten this run: there is no checkpoint {path}")

    with pytest.raises(InvalidArgument, match=r"no checkpoint tinker://gone; give the --base-url"):
        Learner(Forgot(), TinkerOptions(), "model", "all", "tinker://gone")  # type: ignore[arg-type]


@pytest.mark.usefixtures("offline", "registries")
def test_superseded_checkpoints_are_deleted_and_one_that_cannot_be_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def delete(self: Connected, path: str) -> None:
        self.deleted.append(path)
        if path.endswith("2"):
            raise RequestRefused("there is no such checkpoint")

    monkeypatch.setattr(Connected, "delete_checkpoint", delete)
    monkeypatch.setattr(Learned, "sampler", lambda *args: sampler(FakeClient(lambda *args: "Z")))
    with grpo.Trainer(ID, options(tmp_path, episodes=20, save_every=1)) as trainer:
        trainer.run()
    assert [path[-1] for path in trainer.connection.deleted] == ["2", "3"]  # the first is the best
    assert "update-000002 was not deleted: there is no such checkpoint" in capsys.readouterr().err


@pytest.mark.usefixtures("offline", "registries")
def test_a_run_at_another_temperature_says_that_its_gradient_is_biased(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    grpo.train(ID, options(tmp_path, temperature=0.7))
    assert "with a --temperature other than 1 the gradient is biased" in capsys.readouterr().err
    grpo.train(ID, options(tmp_path))
    assert "biased" not in capsys.readouterr().err


@pytest.mark.usefixtures("offline", "registries")
def test_a_run_whose_steps_always_crash_fails_with_the_message_of_the_last_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    class Crashing(gymnasium_env()):
        def step(self, action: Any) -> Any:
            raise OSError("disk full")

    envweave_gym.register("local://crashing", factory=Crashing)
    chosen = options(tmp_path, groups=1, episodes=2, attempts=1)
    assert run_demo(lambda chosen: grpo.train("local://crashing", chosen), chosen) == 1
    printed = capsys.readouterr().err
    assert "error: no episode played an action without a fault; the last: OSError: disk full" in printed
    assert printed.count("update 1: an episode was lost: OSError: disk full") == 1


@pytest.mark.usefixtures("offline", "registries")
def test_the_message_of_a_fault_is_in_metrics_table_and_transcripts(tmp_path: Path):
    class Sometimes(gymnasium_env()):
        steps = 0

        def step(self, action: Any) -> Any:
            Sometimes.steps += 1
            if Sometimes.steps == 2:
                raise OSError("disk <full>")
            return "", 1.0, True, False, {}

    envweave_gym.register("local://sometimes", factory=Sometimes)
    chosen = options(tmp_path, groups=1, episodes=2, attempts=1, num_envs=1)
    with grpo.Trainer("local://sometimes", chosen) as trainer:
        result = trainer.run()
    assert trainer.log.rows[-1]["fault"] == result["last fault"] == "OSError: disk <full>"
    assert result["lost episodes"] == result["faults"] == 1
    assert "OSError: disk &lt;full&gt;" in (chosen.folder / "transcripts.html").read_text()


@pytest.mark.usefixtures("offline", "registries")
def test_updates_that_find_nothing_to_train_on_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(Learned, "sampler", lambda *args: sampler(FakeClient(lambda *args: "?")))
    result = grpo.train(ID, options(tmp_path, episodes=24))
    printed = capsys.readouterr().err
    assert printed.count("updates in a row had nothing to train on") == 1
    assert "3 updates in a row" in printed
    assert "replies without an action in an episode: 1.00; say what to answer with --instruction" in printed
    assert result["updates without training"] == 6
    assert result["invalid replies in an episode"] == 1.0


@pytest.mark.parametrize(("in_update", "resumes"), [(False, 3), (True, 2)])
@pytest.mark.usefixtures("offline", "registries")
def test_ctrl_c_saves_a_checkpoint_unless_the_update_is_half_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_update: bool,
    resumes: int,
):
    class Stopped(grpo.Trainer):
        def _one_update(self) -> None:
            if self.updates == 3:
                place = (self.learners["all"], "update") if in_update else (self._training, "play")
                monkeypatch.setattr(*place, stop)
            super()._one_update()

    def stop(*args: Any) -> Any:
        raise KeyboardInterrupt

    def train(chosen: TinkerOptions) -> None:
        with Stopped(ID, chosen) as trainer:
            trainer.run()

    monkeypatch.setattr(
        Learned, "sampler", lambda *args: sampler(FakeClient(lambda *args: "AB"[args[2] % 2]))
    )
    chosen = options(tmp_path, episodes=20, save_every=2)
    assert run_demo(train, chosen) == 130
    assert f"so far are written; --resume goes on from update {resumes}\n" in capsys.readouterr().err
    assert RunState.load(chosen.folder, {}).update == resumes
    assert grpo.train(ID, options(tmp_path, episodes=20, save_every=2, resume=True))["updates"] == 5
    page = (chosen.folder / "transcripts.html").read_text()
    shown = [number for number in range(9) if f"<summary>update {number}, seed" in page]
    assert shown == [1, 2, 3, 4, 5]
    entries = [json.loads(line) for line in (chosen.folder / "transcripts.jsonl").read_text().splitlines()]
    assert len(entries) == page.count("<details>")


def sigint() -> None:
    """Send Ctrl-C to this thread, which notices it before the next line."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def alternating(self: Learned, stop: Any, temperature: float) -> Any:
    """A sampler of which every second reply is right, so that there is something to train on."""
    return sampler(FakeClient(lambda *args: "AB"[args[2] % 2]))


@pytest.mark.parametrize("place", ["update", "save", "evaluate", "first evaluation", "reconnect"])
@pytest.mark.usefixtures("offline", "registries")
def test_ctrl_c_ends_with_a_checkpoint_wherever_it_comes(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Stopped(grpo.Trainer):
        def evaluate(self) -> dict[str, float]:
            if (place, self.updates) in (("evaluate", 3), ("first evaluation", 0)):
                sigint()
            return super().evaluate()

    def interrupted(self: Learned, *args: Any) -> Any:
        if trainer.updates == 2 and not trainer.options.resume:
            sigint()  # it is held back until the steps are made
            if place == "reconnect":
                raise ServerLost("gone")
        return []

    def save(self: Learned, name: str) -> str:
        if trainer.updates == 3 and not trainer.options.resume:
            sigint()
        return f"tinker://{self.name}/weights/{name}"

    monkeypatch.setattr(Learned, "sampler", alternating)
    if place in ("update", "reconnect"):
        monkeypatch.setattr(Learned, "update", interrupted)
    if place == "save":
        monkeypatch.setattr(Learned, "save", save)
    chosen = options(tmp_path, episodes=24, save_every=1 + 98 * (place != "save"), eval_every=1)

    def train(chosen: TinkerOptions) -> None:
        nonlocal trainer
        with Stopped(ID, chosen) as trainer:
            trainer.run()

    trainer: Any = None
    before = signal.getsignal(signal.SIGINT)
    assert run_demo(train, chosen) == 130
    assert signal.getsignal(signal.SIGINT) == before
    printed = capsys.readouterr().err
    resumes = {"first evaluation": 0, "reconnect": None}.get(place, 3)
    if resumes is None:
        assert "there is no checkpoint yet" in printed
    else:
        assert f"--resume goes on from update {resumes}\n" in printed
        assert RunState.load(chosen.folder, {}).update == resumes
        chosen.resume = True
        assert grpo.train(ID, chosen)["updates"] == 6
    assert not (chosen.folder / "run.lock").exists()


@pytest.mark.usefixtures("offline", "registries")
def test_a_second_ctrl_c_ends_an_update_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def hang(*args: Any) -> Any:
        sigint()
        sigint()
        raise AssertionError("the second one ends it")

    monkeypatch.setattr(Learned, "sampler", alternating)
    monkeypatch.setattr(Learned, "update", hang)
    with (
        grpo.Trainer(ID, options(tmp_path)) as trainer,
        pytest.raises(KeyboardInterrupt, match="there is no checkpoint yet"),
    ):
        trainer.run()
    assert "finishing the update before the end; Ctrl-C again ends at once" in capsys.readouterr().err


@pytest.mark.usefixtures("offline", "registries")
def test_an_error_ends_with_a_checkpoint_of_the_last_whole_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Refused(grpo.Trainer):
        def policies(self, temperature: float | None = None) -> Any:
            if self.updates == 3:
                raise RequestRefused("the gradient is not finite")
            return super().policies(temperature)

    def train(chosen: TinkerOptions) -> None:
        with Refused(ID, chosen) as trainer:
            trainer.run()

    assert run_demo(train, chosen := options(tmp_path, episodes=40, save_every=99)) == 1
    printed = capsys.readouterr().err
    assert "--resume goes on from update 3\n" in printed
    assert printed.endswith("error: the gradient is not finite\n")
    assert RunState.load(chosen.folder, {}).update == 3


@pytest.mark.usefixtures("offline", "registries")
def test_a_second_run_of_a_name_is_refused_and_disturbs_nothing(tmp_path: Path):
    chosen = options(tmp_path)
    with grpo.Trainer(ID, chosen) as first:
        with pytest.raises(InvalidArgument, match="another run"):
            grpo.train(ID, chosen)
        assert first.run()["updates"] == 2


def test_a_tokenizer_that_cannot_be_loaded_is_one_sentence():
    class Broken(Connected):
        service: Any = type("Service", (), {"create_training_client_from_state_with_optimizer": None})

        def call(self, function: Any, *args: Any, what: str) -> Any:
            if "tokenizer" in what:
                raise OSError("no such name\non the hub")
            return type("Client", (), {"save_weights_and_get_sampling_client": None, "get_tokenizer": None})

    learner = Learner(Broken(), TinkerOptions(), "model", "all", "tinker://x")  # type: ignore[arg-type]
    with pytest.raises(
        NotAvailable, match=r"the tokenizer of model .* --tokenizer FOLDER .*: no such name on"
    ):
        learner.tokenizer()


def test_the_name_of_a_checkpoint_is_given_once(monkeypatch: pytest.MonkeyPatch):
    class Saving(Connected):
        service: Any = type("Service", (), {"create_training_client_from_state_with_optimizer": None})

        def call(self, function: Any, *args: Any, what: str) -> Any:
            return type("Client", (), {"save_weights_and_get_sampling_client": None, "save_state": str})

        def result(self, name: str, what: str) -> Any:
            return type("Saved", (), {"path": name})

    learner = Learner(Saving(), TinkerOptions(), "model", "all", "tinker://x")  # type: ignore[arg-type]
    assert [learner.save("a"), learner.save("b"), learner.save("a")] == ["a", "b", "a-2"]


@pytest.mark.usefixtures("offline", "registries")
def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    answers = threading.Event()

    def stop(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_run, "STOP_S", 0.05)
    monkeypatch.setattr(Learned, "save", lambda *args: answers.wait(30))
    with grpo.Trainer(ID, options(tmp_path)) as trainer:
        monkeypatch.setattr(trainer._training, "play", stop)
        with pytest.raises(KeyboardInterrupt, match="there is no checkpoint yet"):
            trainer.run()
    assert not answers.is_set()
    answers.set()
    assert "update 0 was saved: the server did not answer within 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.png", "metrics.jsonl", "state.json", "transcripts.html"])
@pytest.mark.usefixtures("offline", "registries")
def test_a_file_that_cannot_be_written_is_named_after_the_table_with_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
):
    full = open
    chosen = options(tmp_path)

    def refuse(file: Any, *args: Any, **others: Any) -> Any:
        if str(file).startswith(str(chosen.folder / name)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return full(file, *args, **others)

    def train(chosen: TinkerOptions) -> None:
        with grpo.Trainer(ID, chosen) as trainer:
            monkeypatch.setattr("io.open", refuse)  # of pathlib
            monkeypatch.setattr("builtins.open", refuse)  # of matplotlib
            trainer.run()

    assert run_demo(train, chosen) == 1
    printed = capsys.readouterr()
    assert f"error: {chosen.folder / name} cannot be written: No space left on device\n" in printed.err
    if name != "metrics.jsonl":  # which is refused before anything is learned
        assert "tinker://all/sampler_weights/final" in printed.out


@pytest.mark.parametrize("place", ["tokenizer", "evaluation", "interrupt"])
@pytest.mark.usefixtures("offline", "registries")
def test_a_run_that_fails_before_its_first_row_leaves_an_earlier_one_as_it_is(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    chosen = options(tmp_path, save_every=1)
    grpo.train(ID, chosen)
    before = {path.name: path.read_bytes() for path in chosen.folder.iterdir()}

    def failing(*args: Any) -> Any:
        if place == "interrupt":
            sigint()
        raise NotAvailable("it cannot be loaded")

    what, name = (Learned, "tokenizer") if place == "tokenizer" else (grpo.Trainer, "evaluate")

    def train(chosen: TinkerOptions) -> None:
        grpo.train(ID, chosen)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(what, name, failing)
        assert run_demo(train, chosen) == (130 if place == "interrupt" else 1)
    printed = capsys.readouterr().err
    assert "replacing" not in printed
    assert "are written" not in printed
    assert {path.name: path.read_bytes() for path in chosen.folder.iterdir()} == before
    assert grpo.train(ID, replace(chosen, resume=True, episodes=12))["updates"] == 3


@pytest.mark.parametrize("kind", [NotAvailable, InvalidArgument, RequestRefused])
@pytest.mark.usefixtures("offline", "registries")
def test_a_server_that_does_not_come_back_ends_the_run_with_the_reason_of_its_loss(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def update(*args: Any) -> Any:
        raise ServerLost("the server has forgotten this run")

    def reconnect(*args: Any) -> None:
        raise kind("it did not come back")

    monkeypatch.setattr(Learned, "sampler", alternating)
    monkeypatch.setattr(Learned, "update", update)
    monkeypatch.setattr(Connected, "reconnect", reconnect)
    with pytest.raises(kind, match="has forgotten this run; then: it did not come back"):
        grpo.train(ID, options(tmp_path))


@pytest.mark.parametrize("refused", ["write_text", "unlink"])
@pytest.mark.usefixtures("offline", "registries")
def test_a_disk_that_is_full_at_the_first_row_costs_no_earlier_run(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """``write_text`` writes the first row, ``unlink`` removes the state of the earlier run."""
    chosen = options(tmp_path, save_every=1)
    grpo.train(ID, chosen)
    before = {path.name: path.read_bytes() for path in chosen.folder.iterdir()}
    write = getattr(Path, refused)

    def refuse(path: Path, *args: Any, **others: Any) -> Any:
        if path.name not in ("metrics.jsonl.new", "state.json"):
            return write(path, *args, **others)
        if refused == "write_text":
            path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(chosen: TinkerOptions) -> None:
        with grpo.Trainer(ID, chosen) as trainer:
            patch.setattr(Path, refused, refuse)
            trainer.run()

    with monkeypatch.context() as patch:
        assert run_demo(train, chosen) == 1
    assert "metrics.jsonl cannot be written: No space left on device" in capsys.readouterr().err
    if refused == "unlink":  # else the run has removed it
        (chosen.folder / "metrics.jsonl.new").unlink()
    assert {path.name: path.read_bytes() for path in chosen.folder.iterdir()} == before
    assert grpo.train(ID, replace(chosen, resume=True, episodes=12))["updates"] == 3


@pytest.mark.usefixtures("offline", "registries")
def test_a_run_that_fails_before_its_first_row_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(*args: Any) -> Any:
        raise NotAvailable("it cannot be loaded")

    out = tmp_path / "runs"
    with pytest.raises(InvalidArgument, match=r"has no state\.json"):
        grpo.train(ID, options(out, run="nonexistent", resume=True))
    monkeypatch.setattr(Learned, "tokenizer", failing)
    with pytest.raises(NotAvailable):
        grpo.train(ID, options(out))
    assert not out.exists()


@pytest.mark.usefixtures("offline", "registries")
def test_the_last_update_plays_only_the_groups_that_are_left(tmp_path: Path):
    chosen = options(tmp_path, groups=4, episodes=11, eval_every=2, eval_episodes=1)
    result = grpo.train(ID, chosen)
    assert (result["updates"], result["episodes"]) == (2, 12)
    rows = [json.loads(line) for line in (chosen.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["episodes"] for row in rows] == [0, 8, 12]
    assert ["held_out_success" in row for row in rows] == [True, False, True]
    more = grpo.train(ID, replace(chosen, resume=True, episodes=30))
    assert (more["updates"], more["episodes"]) == (5, 30)


@pytest.mark.usefixtures("offline", "registries")
def test_success_in_training_begins_with_the_mean_of_the_first_updates(tmp_path: Path):
    chosen = options(tmp_path, episodes=12)
    result = grpo.train(ID, chosen)
    rows = [json.loads(line) for line in (chosen.folder / "metrics.jsonl").read_text().splitlines()]
    assert result["success in training"] == pytest.approx(sum(row["success"] for row in rows[1:]) / 3)


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """SIGTERM as in a new process: Ray, which other tests start in this one, has a handler that ends it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("offline", "registries", "default_sigterm")
def test_sigterm_ends_like_ctrl_c_with_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def terminated(self: Learned, *args: Any) -> list[Any]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        return []

    def train(chosen: TinkerOptions) -> None:
        grpo.train(ID, chosen)

    monkeypatch.setattr(Learned, "sampler", alternating)
    monkeypatch.setattr(Learned, "update", terminated)
    before = signal.getsignal(signal.SIGTERM)
    assert run_demo(train, options(tmp_path)) == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert "the metrics so far are written; --resume goes on from update 1\n" in capsys.readouterr().err


@pytest.mark.usefixtures("offline", "registries", "default_sigterm")
def test_sigterm_ends_with_a_checkpoint_where_ctrl_c_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def terminated(self: Learned, *args: Any) -> list[Any]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        done.append("the whole update")
        return []

    def train(chosen: TinkerOptions) -> None:
        grpo.train(ID, chosen)

    monkeypatch.setattr(Learned, "sampler", alternating)
    monkeypatch.setattr(Learned, "update", terminated)
    done: list[str] = []
    ends, interrupt = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_demo(train, options(tmp_path)) == 143
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert signal.getsignal(signal.SIGTERM) == ends
    assert done == ["the whole update"]
    printed = capsys.readouterr().err
    assert "finishing the update before the end; SIGTERM again ends at once" in printed
    assert "the metrics so far are written; --resume goes on from update 1\n" in printed


@pytest.mark.parametrize(
    ("env_id", "settings", "expected"),
    [
        ("CartPole-v1", {"max_turns": 500}, 475.0),
        ("CartPole-v1", {"success_reward": "2.5"}, 2.5),
        ("CartPole-v1", {"success_reward": 0.0}, 0.0),
        ("MountainCar-v0", {"max_turns": 200}, -110.0),
        ("MountainCar-v0", {"success_reward": "-15"}, -15.0),
        (ID, {}, 1.0),
    ],
)
@pytest.mark.usefixtures("offline", "registries")
def test_success_is_the_option_or_the_reward_threshold_of_the_id(
    env_id: str,
    settings: dict[str, Any],
    expected: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    with grpo.Trainer(env_id, options(tmp_path, target_success_rate=0.5, **settings)) as trainer:
        assert trainer.success_reward == expected
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("env_id", "steps"), [("CartPole-v1", 500), ("MountainCar-v0", 200)])
@pytest.mark.usefixtures("offline", "registries")
def test_a_reward_threshold_is_no_mark_for_episodes_that_max_turns_cuts(
    env_id: str, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with grpo.Trainer(env_id, options(tmp_path), held_out={"render_mode": None}) as trainer:
        assert trainer.success_reward == 1.0
    [line] = capsys.readouterr().err.splitlines()
    assert "success counts returns of 1.0 or more" in line
    assert f"give --success-reward, or --max-turns {steps}" in line
    with pytest.raises(InvalidArgument, match=f"give --success-reward, or --max-turns {steps}"):
        grpo.Trainer(env_id, options(tmp_path, episodes=0, target_success_rate=0.5))


@pytest.mark.parametrize("value", ["nan", "inf", "much", "-1e999"])
def test_a_success_reward_is_a_finite_number(value: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"--success-reward .* is no finite number"):
        options(tmp_path, success_reward=value)
    assert parse_options(TinkerOptions, "", ["--success-reward", "-110"]).success_reward == -110.0


@pytest.mark.parametrize(("eval_every", "updates"), [(0, 10), (1, 0)])
@pytest.mark.usefixtures("offline", "registries")
def test_a_target_is_not_reached_by_one_lucky_update(
    eval_every: int, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grpo, "episode_metrics", lambda *args: {"success": 1.0})
    chosen = options(tmp_path, episodes=0, target_success_rate=0.9, eval_every=eval_every, eval_episodes=1)
    assert grpo.train(ID, chosen)["updates"] == updates
