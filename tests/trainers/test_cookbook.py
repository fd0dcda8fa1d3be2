"""tinker-cookbook plays our IDs and games: groups of one seed, faults that are played again, roles that meet."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed: run make trainers")

import gymnasium as gym
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_strategy import FailFast, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tokenizer_utils import register_tokenizer
from tool_models import small_tokenizer

import envweave_gym
from envweave_gym.chat import EpisodeLost
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.integrations.tinker_cookbook import (
    HELD_OUT,
    EnvDatasetBuilder,
    cookbook_messages,
    renderer_of,
)

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
MODEL, RENDERER = "test/letters", "qwen3_instruct"
END = "<|im_end|>"


@pytest.fixture(autouse=True, scope="module")
def tokenizer() -> Any:
    """A tokenizer of bytes, under the name of the model."""
    made = small_tokenizer(["pick A"], chat_template="")
    register_tokenizer(MODEL, lambda: made)
    return made


class Script(TokenCompleter):
    """A model that replies what a function says of its prompt, and keeps the prompts."""

    def __init__(self, tokenizer: Any, reply: Callable[[str], str]) -> None:
        self.tokenizer, self.reply, self.prompts = tokenizer, reply, list[str]()

    async def __call__(
        self, model_input: Any, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        prompt = self.tokenizer.decode(model_input.to_ints())
        self.prompts.append(prompt)
        tokens = self.tokenizer.encode(self.reply(prompt))
        reason = "stop" if tokens[-1] == self.tokenizer.encode(END)[0] else "length"
        return TokensWithLogprobs(tokens, [-1.0] * len(tokens), reason)


def built(**options: Any) -> Any:
    """The data sets of training and evaluation."""
    return asyncio.run(EnvDatasetBuilder(model_name=MODEL, renderer_name=RENDERER, **options)())


def rollouts(builders: Sequence[Any], model: Script, strategy: Any = None) -> list[Any]:
    """The trajectory groups of some builders, which run at once as in training."""

    async def run() -> list[Any]:
        return await asyncio.gather(*[do_group_rollout(one, model, strategy) for one in builders])

    return asyncio.run(run())


def letters(**options: Any) -> Any:
    return built(env_id="envweave/PickLetter-v0", batches=2, groups_per_batch=3, group_size=4, **options)


def test_a_group_plays_one_seed_and_the_right_reply_earns_the_reward(tokenizer: Any) -> None:
    training, _ = letters()
    model = Script(tokenizer, lambda prompt: prompt.partition("pick ")[2][0] + END)
    groups = rollouts(training.get_batch(0), model)
    assert [group.get_total_rewards() for group in groups] == [[1.0] * 4] * 3
    assert all(model.prompts.count(prompt) % 4 == 0 for prompt in model.prompts)
    step = groups[0].trajectories_G[0].transitions[0]
    assert step.metrics == {"correct": 1.0, "invalid_reply": 0.0, "stop/completed": 1.0}
    assert groups[0].trajectories_G[0].stop_reason == "completed"


def test_held_out_seeds_are_no_seeds_of_training_and_may_have_other_arguments() -> None:
    training, held_out = letters(test_groups=5, test_kwargs={"render_mode": "ansi"}, seed=7)
    seeds = [builder.spec.seed for batch in range(2) for builder in training.get_batch(batch)]
    assert seeds == [*range(7, 13)]
    [*tests] = held_out.get_batch(0)
    assert [(one.spec.seed, one.group_size) for one in tests] == [(HELD_OUT + i, 1) for i in range(5)]
    assert tests[0].spec.env_kwargs == {"render_mode": "ansi"}
    assert letters(test_groups=0)[1] is None


def test_seeds_that_reach_the_held_out_ones_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="between 0 and"):
        letters(seed=HELD_OUT - 5)


def test_a_builder_can_be_pickled_and_plays_on(tokenizer: Any) -> None:
    builder = pickle.loads(pickle.dumps(letters()[0].get_batch(0)[0]))
    [group] = rollouts([builder], Script(tokenizer, lambda _: f"A{END}"))
    assert len(group.trajectories_G) == 4


@pytest.mark.parametrize("reply", [f"none{END}", "too long to end"])
def test_replies_without_an_action_cost_what_the_builder_says(tokenizer: Any, reply: str) -> None:
    training, _ = letters(invalid_reward=-0.25)
    [group, *_] = rollouts(training.get_batch(0), Script(tokenizer, lambda _: reply))
    assert group.get_total_rewards() == [-0.25] * 4


def test_a_refused_reply_is_answered_and_the_next_prompt_goes_on_where_it_ended(tokenizer: Any) -> None:
    training, _ = letters(invalid_replies=1)
    model = Script(tokenizer, lambda prompt: ("A" if "hm" in prompt else "hm") + END)
    [group] = rollouts(training.get_batch(0)[:1], model)
    first, second = group.trajectories_G[0].transitions
    whole = first.ob.to_ints() + first.ac.tokens
    assert second.ob.to_ints()[: len(whole)] == whole
    assert (first.metrics["invalid_reply"], second.metrics["invalid_reply"]) == (1.0, 0.0)


class Failing(gym.Env[Any, Any]):
    """Earns 1 in its only step; of all that were made the first two are lost, in the reset and in the step."""

    observation_space, action_space = envweave_gym.Unicode(32), envweave_gym.Unicode(32)
    lock, made, closed = threading.Lock(), 0, 0

    def __init__(self) -> None:
        with self.lock:
            Failing.made += 1
            self.number = Failing.made

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.number == 1:
            raise RuntimeError("no simulator")
        return "go", {}

    def step(self, action: str) -> Any:
        if self.number == 2:
            raise RuntimeError("the simulator fell over")
        return "done", 1.0, True, False, {}

    def close(self) -> None:
        with self.lock:
            Failing.closed += 1


@pytest.mark.parametrize("on_fault", ["raise", "truncate"])
def test_a_lost_episode_is_played_again_and_never_earns_0(tokenizer: Any, on_fault: str) -> None:
    envweave_gym.register("local://failing-chat", factory=Failing)
    kwargs = {"on_fault": on_fault, "reset_deadline": 0.0}
    training, _ = built(
        env_id="local://failing-chat", env_kwargs=kwargs, batches=1, groups_per_batch=1, group_size=4
    )
    Failing.made = Failing.closed = 0  # one was made to see what it is
    model = Script(tokenizer, lambda _: f"A{END}")
    [group] = rollouts(training.get_batch(0), model, RetryOnFailure())
    assert group.get_total_rewards() == [1.0] * 4
    assert len(group.rollout_errors) == 2
    assert Failing.closed == Failing.made == 6
    Failing.made = 0
    with pytest.raises((EpisodeLost, RuntimeError)):
        rollouts(training.get_batch(0), model, FailFast())


def test_threads_may_render_at_once() -> None:
    """Renderers of earlier versions changed a flag of the tokenizer, which then raised ``Already borrowed``."""
    renderer, errors = renderer_of(RENDERER, MODEL), list[Exception]()

    def render() -> None:
        for number in range(200):
            try:
                renderer.build_generation_prompt([{"role": "user", "content": f"pick {number}"}])
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_messages_with_tool_calls_and_parts_of_text_are_rendered_and_images_refused() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        {"role": "user", "content": [{"type": "text", "text": "so"}, {"type": "text", "text": "?"}]},
    ]
    first, second, third = cookbook_messages(messages)
    assert first["tool_calls"][0].function.arguments == '{"a": 1}'
    assert (second["tool_call_id"], third["content"]) == ("call_1", "so?")
    renderer_of(RENDERER, MODEL).build_generation_prompt([first, second, third])
    with pytest.raises(NotAvailable, match="image_url"):
        cookbook_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


# Games


def kuhn(size: int = 3, **options: Any) -> list[Any]:
    kwargs = {"api": options.pop("api", "parallel")}
    training, _ = built(
        env_id="envweave/KuhnPoker-v0",
        env_kwargs=kwargs,
        batches=1,
        groups_per_batch=2,
        group_size=size,
        **options,
    )
    return training.get_batch(0)


def boldly(prompt: str) -> str:
    """The reply of a player that bets and calls."""
    return ("call" if "fold" in prompt.rpartition("Answer")[2] else "bet") + END


@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_a_group_is_one_role_and_the_roles_of_a_seed_play_together(tokenizer: Any, api: str) -> None:
    builders = kuhn(api=api)
    assert [one.logging_tags() for one in builders] == [
        ["KuhnPoker-v0", "player_0"],
        ["KuhnPoker-v0", "player_1"],
    ] * 2
    groups = [group.get_total_rewards() for group in rollouts(builders, Script(tokenizer, boldly))]
    for first, second in (groups[:2], groups[2:]):
        assert first == [first[0]] * 3
        assert abs(first[0]) == 2.0  # both have bet
        assert second == [-first[0]] * 3


def test_builders_of_roles_meet_after_pickling(tokenizer: Any) -> None:
    builders = [pickle.loads(pickle.dumps(one)) for one in kuhn()[:2]]
    assert len(rollouts(builders, Script(tokenizer, boldly))) == 2


def test_who_replies_without_an_action_pays_and_the_other_role_learns_nothing(tokenizer: Any) -> None:
    replies = iter(["check", "check", "hm"])  # the first player of one of three games fails

    def play(prompt: str) -> str:
        opens = "check or bet" in prompt.rpartition("It is")[2] and "player_0, and" in prompt
        return (next(replies) if opens else "check") + END

    model = Script(tokenizer, play)
    first, second = rollouts(kuhn(invalid_reward=-5.0)[:2], model)
    assert sorted(first.get_total_rewards())[0] == -5.0
    totals = second.get_total_rewards()
    assert totals == pytest.approx([totals[0]] * 3)
    assert sum(metrics["ended_by_others"] for metrics in second.metrics_G) == 1


def test_a_group_without_any_turn_is_dropped(tokenizer: Any) -> None:
    builders = kuhn()[:2]

    async def run() -> list[Any]:
        model = Script(tokenizer, lambda _: "a reply without an end")
        return await asyncio.gather(
            *[do_group_rollout(one, model) for one in builders], return_exceptions=True
        )

    first, second = asyncio.run(run())
    assert first.get_total_rewards() == [0.0] * 3
    assert isinstance(second, AllTrajectoriesFailedError)


def test_a_role_whose_partner_does_not_come_fails_in_time_and_says_why(tokenizer: Any) -> None:
    [alone, *_] = kuhn(patience=0.05)
    with pytest.raises(
        EpisodeLost, match=r"player_0 has waited 0\.05 s for player_1; all roles must be played at once"
    ):
        rollouts([alone], Script(tokenizer, boldly))


def test_a_rollout_that_ends_before_its_game_ends_the_game_of_the_other_role_at_once(tokenizer: Any) -> None:
    first, second = kuhn(size=1)[:2]

    async def run() -> None:
        [mine], [other] = await first.make_envs(), await second.make_envs()
        _, waiting = await asyncio.gather(mine.initial_observation(), _started(other.initial_observation()))
        await first.cleanup()
        with pytest.raises(EpisodeLost, match="the rollout of player_0 ended before the game"):
            await waiting
        await second.cleanup()

    asyncio.run(asyncio.wait_for(run(), 30))


async def _started(coroutine: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(coroutine)


def test_a_lost_game_is_played_again_by_all_roles(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def table() -> Any:
        game = envweave_gym.make("envweave/KuhnPoker-v0")
        made.append(1)
        if len(made) == 2:  # the first is made for its roles
            monkeypatch.setattr(game, "step", partial(_fall, game), raising=False)
        return game

    envweave_gym.register("local://flaky-table", factory=table)
    training, _ = built(env_id="local://flaky-table", batches=1, groups_per_batch=1, group_size=2)
    groups = rollouts(training.get_batch(0), Script(tokenizer, boldly), RetryOnFailure())
    assert [len(group.rollout_errors) for group in groups] == [1, 1]
    assert [len(group.trajectories_G) for group in groups] == [2, 2]
    assert groups[0].get_total_rewards()[0] == -groups[1].get_total_rewards()[0]


def _fall(game: Any, actions: Any) -> Any:
    raise RuntimeError("the table fell over")


class Strange(gym.Env[Any, Any]):
    """Its only step says that it is terminated, though not with a bool."""

    observation_space, action_space = envweave_gym.Unicode(32), envweave_gym.Unicode(32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return "go", {}

    def step(self, action: str) -> Any:
        return "done", 1.0, "yes", False, {}


def test_what_is_no_result_of_a_step_is_no_reward(tokenizer: Any) -> None:
    envweave_gym.register("local://strange-chat", factory=Strange)
    training, _ = built(env_id="local://strange-chat", batches=1, groups_per_batch=1, group_size=2)
    with pytest.raises(EpisodeLost, match="terminated='yes', which is no bool"):
        rollouts(training.get_batch(0), Script(tokenizer, lambda _: f"A{END}"), FailFast())


def test_observations_come_after_the_form_of_an_action_or_a_given_instruction(tokenizer: Any) -> None:
    for given, shown in (("", "Answer with one whole number from 0 to 1"), ("Push.", "Push.")):
        training, _ = built(
            env_id="CartPole-v1", batches=1, groups_per_batch=1, group_size=1, max_turns=1, instruction=given
        )
        model = Script(tokenizer, lambda _: f"1{END}")
        rollouts(training.get_batch(0), model)
        assert shown in model.prompts[0]


def test_an_action_space_that_no_reply_can_name_is_refused_at_the_start() -> None:
    class Objects(gym.Space[Any]):
        def sample(self, mask: Any = None, probability: Any = None) -> Any:
            return object()

        def contains(self, x: Any) -> bool:
            return type(x) is object

    class Mute(Strange):
        action_space = Objects()

    envweave_gym.register("local://mute-chat", factory=Mute)
    with pytest.raises(InvalidArgument, match="no reply can name an action"):
        built(env_id="local://mute-chat")
