"""What a run with Tinker writes and reads: options, the state to resume from, metrics, transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_tinker import Characters

from envweave_gym.core.faults import Fault, FaultKind, InvalidArgument
from envweave_gym.core.protocols import AGENT
from envweave_gym.training import kuhn_tinker
from envweave_gym.training.options import parse_options
from envweave_gym.training.run_metrics import RunMetrics
from envweave_gym.training.tinker.advantages import training_rows
from envweave_gym.training.tinker.datums import TokenRow
from envweave_gym.training.tinker.episodes import Episode, Task, Trajectory
from envweave_gym.training.tinker.run_state import RunState, defaults_of, settings_of
from envweave_gym.training.tinker.sampling import SharedRequest, seed_of
from envweave_gym.training.tinker.tinker_options import TinkerOptions
from envweave_gym.training.tinker.transcripts import Transcripts


def episode(group: int, member: int, reward: float, *, fault: bool = False, text: str = "hi") -> Episode:
    task = Task(("train", group), group, member, 7, SharedRequest(2, 1))
    if fault:
        return Episode(task, fault=Fault(FaultKind.LOST, "gone", retryable=True))
    row = TokenRow()
    row.add_prompt([1])
    row.add_reply(Characters().encode(text, False), [-0.5] * len(text))
    messages = [{"role": "user", "content": "say <hi>"}, {"role": "assistant", "content": text}]
    return Episode(task, {AGENT: Trajectory(AGENT, [row], messages, reward)})


def test_a_group_with_a_lost_episode_is_centred_over_the_others():
    played = [episode(0, 0, 1.0), episode(0, 1, 0.0, fault=True), episode(0, 2, 0.0), episode(0, 3, 0.5)]
    rows = training_rows(played)[AGENT]
    assert [row.advantages for row in rows] == [(0.5,), (-0.5,), (0.0,)]


def test_a_group_of_equal_rewards_is_left_out():
    played = [episode(0, 0, 0.1), episode(0, 1, 0.1), episode(1, 0, 0.0), episode(1, 1, 1.0)]
    assert [row.advantages for row in training_rows(played)[AGENT]] == [(-0.5,), (0.5,)]
    assert training_rows(played[:2]) == {}
    assert len(training_rows(played, entropy=0.1)[AGENT]) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip_low": 1.5}, "--clip-low 1.5 is above --clip-high 1.2"),
        ({"adam_beta2": 1.0}, "--adam-beta2 1.0 never forgets"),
        ({"group": 1}, "--group 1 leaves nothing to compare; give 2 or more"),
        ({"loss": "mse"}, "--loss mse is unknown; give importance_sampling, ppo, cispo"),
        ({"prompt": "verse"}, "--prompt verse is unknown; give chat, plain"),
        ({"episodes": 0}, "--episodes 0 needs a --target-success-rate"),
        ({"substeps": 9, "groups": 8}, "--substeps 9 is more than --groups 8"),
        ({"deterministic": True}, "--deterministic is for the server that --local starts"),
        ({"local": True, "base_url": "http://x"}, "--local and --base-url name two servers"),
        ({"episodes": 0, "target_success_rate": 0.5, "schedule": "linear"}, "--schedule linear needs"),
    ],
)
def test_options_that_contradict_each_other_are_refused(values: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        TinkerOptions(**values)


def test_the_number_of_updates_and_the_learning_rate_follow_from_the_episodes():
    options = TinkerOptions(group=4, groups=8, episodes=100, learning_rate=1.0, schedule="linear")
    assert (options.batch, options.updates) == (32, 4)
    assert [options.rate_at(update) for update in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert TinkerOptions(episodes=0, target_success_rate=0.9).updates is None


def test_the_help_says_how_often_an_episode_is_played_and_which_model_is_the_default(
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit):
        parse_options(TinkerOptions, "", ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "times that an episode is played in all" in text
    assert "default: Qwen/Qwen3-4B-Instruct-2507 if the server has it, else its first one" in text


def test_switches_are_flags_on_the_command_line():
    assert parse_options(TinkerOptions, "", ["--local", "--deterministic"]).local
    assert not parse_options(TinkerOptions, "", []).local


def test_the_state_of_a_run_is_read_back_and_refuses_other_settings(tmp_path: Path):
    settings = settings_of(TinkerOptions(), env_id="x")
    RunState(3, {"all": "tinker://m/weights/3"}, 0.5, settings).save(tmp_path)
    assert RunState.load(tmp_path, settings) == RunState(3, {"all": "tinker://m/weights/3"}, 0.5, settings)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    more = settings_of(TinkerOptions(episodes=9, num_envs=2), env_id="x")
    assert RunState.load(tmp_path, more).update == 3
    with pytest.raises(InvalidArgument, match=r"the run had rank=16, not 8; give the same, or another --run"):
        RunState.load(tmp_path, settings_of(TinkerOptions(rank=8), env_id="x"))
    with pytest.raises(InvalidArgument, match=r"has no state.json"):
        RunState.load(tmp_path / "other", settings)


def test_a_run_of_an_earlier_version_resumes_with_the_defaults_of_options_that_it_did_not_have(
    tmp_path: Path,
):
    options = kuhn_tinker.Options()
    older = settings_of(options, env_id="x")
    del older["entropy"], older["alpha"], older["answer_timeout"]
    RunState(3, {"all": "tinker://m/weights/3"}, 0.5, older).save(tmp_path)

    def load(**others: Any) -> RunState:
        chosen = kuhn_tinker.Options(**others)
        return RunState.load(tmp_path, settings_of(chosen, env_id="x"), defaults=defaults_of(chosen))

    assert load().update == load(answer_timeout=9.0).update == 3
    for name, default in (("entropy", 0.0), ("alpha", 0.4)):
        with pytest.raises(InvalidArgument, match=rf"the run had {name}={default}, not 0\.7; give the same"):
            load(**{name: 0.7})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "it is no JSON object"),
        ('{"update": "x"}', "'update' is 'x'"),
        ('{"update": 1, "checkpoints": []}', "'checkpoints' is"),
        ('{"update": 1, "of_tomorrow": 1}', "'of_tomorrow' is of a later version"),
        ('{"upd', "cannot be read"),
    ],
)
def test_a_state_that_no_run_has_written_is_refused_in_one_sentence(tmp_path: Path, content: str, words: str):
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(InvalidArgument, match=r"--resume: .*state\.json cannot be read") as caught:
        RunState.load(tmp_path, {})
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ["{", '{"update": 0}', "5", '{"seconds": "x"}', "\udcff"])
def test_metrics_that_no_run_has_written_are_refused_in_one_sentence(tmp_path: Path, line: str):
    (tmp_path / "metrics.jsonl").write_bytes(line.encode(errors="surrogateescape") + b"\n")
    with (
        pytest.raises(InvalidArgument, match=r"metrics\.jsonl .*begin again without --resume"),
        RunMetrics(tmp_path, ("reward",), resume=True),
    ):
        pass


def test_a_metric_that_is_not_finite_does_not_end_the_run(tmp_path: Path):
    with RunMetrics(tmp_path, ("kl",)) as log:
        log.write(kl=float("nan"), reward=1.0)
        log.write(kl=float("inf"))
        log.write(kl=0.5)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["kl"] for row in rows] == [None, None, 0.5]
    assert (tmp_path / "metrics.png").exists()


def test_a_policy_that_only_plays_needs_the_settings_of_the_policy_alone(tmp_path: Path):
    RunState(settings=settings_of(TinkerOptions(), env_id="x", held_out={"split": "dev"})).save(tmp_path)
    other = settings_of(TinkerOptions(group=2, max_tokens=9), env_id="x", held_out={})
    assert RunState.load(tmp_path, other, only_plays=True).settings["held_out"] == {"split": "dev"}
    with pytest.raises(InvalidArgument, match="the run had"):
        RunState.load(tmp_path, other)
    with pytest.raises(InvalidArgument, match="the run had prompt='chat', not 'plain'"):
        RunState.load(tmp_path, settings_of(TinkerOptions(prompt="plain"), env_id="x"), only_plays=True)


def test_a_linear_schedule_is_not_resumed_with_another_number_of_episodes(tmp_path: Path):
    RunState(settings=settings_of(TinkerOptions(schedule="linear", episodes=512))).save(tmp_path)
    with pytest.raises(InvalidArgument, match="the run had episodes=512, not 1024"):
        RunState.load(tmp_path, settings_of(TinkerOptions(schedule="linear", episodes=1024)))


def test_kuhn_poker_without_a_number_of_hands_needs_a_nash_conv_as_target():
    options = kuhn_tinker.Options(episodes=0, schedule="constant", target_nash_conv=0.05)
    assert options.updates is None
    with pytest.raises(ValueError, match="--episodes 0 needs a --target-nash-conv"):
        kuhn_tinker.Options(episodes=0, schedule="constant", target_nash_conv=0.0)


def test_the_last_two_checkpoints_and_the_best_are_retained():
    state, dropped = RunState(), list[str]()
    for update, score in enumerate([0.1, 0.9, 0.9, 0.2, 0.3], 1):
        dropped += state.advance(update, {"all": f"tinker://{update}"}, 0.0, score)
    assert dropped == ["tinker://1", "tinker://3"]
    assert [one["update"] for one in state.retained] == [2, 4, 5]
    assert (state.update, state.checkpoints) == (5, {"all": "tinker://5"})


def test_rows_to_keep_replace_the_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with RunMetrics(tmp_path, ("reward",)) as log:
        log.write(reward=0.1)

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        RunMetrics(tmp_path, ("reward",), resume=True).__enter__()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["reward"] == 0.1


def test_metrics_of_a_resumed_run_follow_those_that_are_retained(tmp_path: Path):
    with RunMetrics(tmp_path, ("reward",)) as log:
        for reward in (0.1, 0.2, 0.3):
            log.write(reward=reward)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"update": 3, "rew')  # killed in the middle of a line
    with RunMetrics(tmp_path, ("reward",), resume=True) as log:
        assert len(log.rows) == 3
        log.keep(2)
        log.write(reward=0.9)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["update"], row["reward"]) for row in rows] == [(0, 0.1), (1, 0.2), (2, 0.9)]
    assert rows[2]["seconds"] >= rows[1]["seconds"]


def test_transcripts_show_the_best_and_the_worst_episode_escaped(tmp_path: Path):
    page = Transcripts("a & b", tmp_path / "page.html")
    page.add(
        "update 1", [episode(0, 0, 1.0), episode(0, 1, 0.0, text="<b>no</b>"), episode(0, 2, 0.5, text="so")]
    )
    page.add("update 2", [episode(0, 0, 1.0, fault=True)])
    page.write()
    text = (tmp_path / "page.html").read_text()
    assert text.count("<details>") == 2
    assert "a &amp; b" in text
    assert "say &lt;hi&gt;" in text
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "so</pre>" not in text
    assert "update 2" not in text


def test_transcripts_of_a_resumed_run_begin_with_those_up_to_its_checkpoint(tmp_path: Path):
    first = Transcripts("a", tmp_path / "page.html")
    for first.update in (1, 2, 3):
        first.add(f"update {first.update}", [episode(0, 0, 1.0)])
    first.add_fault("update 3", "gone")
    first.write()
    second = Transcripts("a", tmp_path / "page.html", resume=True)
    second.keep(2)
    second.add("again", [episode(0, 0, 1.0)])
    second.write()
    text = (tmp_path / "page.html").read_text()
    assert [name in text for name in ("update 1", "update 2", "update 3", "again")] == [
        True,
        True,
        False,
        True,
    ]
    assert text.count("say &lt;hi&gt;") == 3
    (tmp_path / "page.jsonl").write_text("{}\n")
    with pytest.raises(InvalidArgument, match=r"--resume: .*page\.jsonl cannot be read"):
        Transcripts("a", tmp_path / "page.html", resume=True)


def test_seeds_depend_on_their_parts_alone_and_fit_a_c_int():
    assert seed_of("train", 0, 1) == 1161140479 < 2**31
    assert len({seed_of("train", 0, index) for index in range(1000)}) > 990


def test_a_run_that_never_begins_leaves_no_metrics_and_one_that_replaces_another_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    RunMetrics(tmp_path, ("reward",))
    assert list(tmp_path.iterdir()) == []
    for replaced in (False, True):
        with RunMetrics(tmp_path, ("reward",)) as log:
            log.write(reward=0.1)
        assert ("replacing the earlier run" in capsys.readouterr().err) is replaced
