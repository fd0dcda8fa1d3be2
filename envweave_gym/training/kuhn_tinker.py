"""Demo in which a language model learns Kuhn poker in self-play, as text, and comes close to the equilibrium.

    python -m envweave_gym.training.kuhn_tinker --local

Policy gradient in self-play circles around the equilibrium. So each reply has an entropy bonus, ``alpha`` times the
negative logarithm of its probability, which fades: this is magnetic mirror descent with random play as its magnet,
and its last policy converges. The policy is read from the model's probabilities of the legal replies at the 12
information sets, and its exact NashConv is reported: the sum of the gains of a perfect opponent in either seat.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import envweave_gym
from envweave_gym.chat import ChatGame
from envweave_gym.envs.games.kuhn_rules import INFORMATION_SETS, game_value, nash_conv
from envweave_gym.training.options import demo_main, option
from envweave_gym.training.run_metrics import writing
from envweave_gym.training.tinker.datums import TokenRow, TrainingRow
from envweave_gym.training.tinker.episodes import Episode, Trajectory
from envweave_gym.training.tinker.grpo import Trainer
from envweave_gym.training.tinker.prompts import Conversation, Prompts
from envweave_gym.training.tinker.tinker_options import TinkerOptions

ID = "envweave/KuhnPoker-v0"
WORDS = (("check", "bet"), ("fold", "call"))
"""Words for the two moves, before and after a bet."""
FADING_UPDATES = 200
"""Updates in which the entropy bonus fades if the number of hands is not limited."""
LARGEST_WEIGHT = 10.0
"""A word that makes up less than one part in this of the replies to a prompt has less weight."""
SEEDS_TRIED = 100
"""Seeds among which there is one for each of the six deals."""
SMALLEST_CHANCE = 1e-3
"""Least probability that is assumed of a word that was not tried."""
CARD_NAMES = {"J": "jack", "Q": "queen", "K": "king"}


@dataclass
class Options(TinkerOptions):
    """The command-line options of the demo, beyond those of every run with Tinker."""

    demo: ClassVar[str] = "kuhn_tinker"
    target_option: ClassVar[str] = "--target-nash-conv"

    num_envs: int = option(64, "environments, each in a thread")
    group: int = option(64, "hands of one deal")
    groups: int = option(6, "deals of each update; multiples of 6 have all deals equally often")
    episodes: int = option(61_440, "hands to train on", least=0)
    max_tokens: int = option(4, "longest reply, in tokens")
    invalid_reward: float = option(-2.0, "reward of a reply that is no move", least=-1e9)
    learning_rate: float = option(6e-4, "step size of Adam")
    adam_beta1: float = option(
        0.0, "decay of Adam's mean of the gradients; more makes self-play circle", least=0, most=1
    )
    schedule: str = option(
        "linear", "course of the learning rate: constant, or linear (to 0 at the last episode)"
    )
    alpha: float = option(0.4, "weight of the entropy bonus at first")
    alpha_end: float = option(0.1, "weight of the entropy bonus at the end")
    eval_every: int = option(5, "updates between two readings of the policy; 0: none", least=0)
    target_nash_conv: float = option(0.1, "stop when the NashConv is below this; 0: no target", least=0)

    @property
    def has_target(self) -> bool:
        """Whether a NashConv or a share of hands that succeed ends training."""
        return bool(self.target_nash_conv) or super().has_target


class KuhnTrainer(Trainer):
    """Self-play with advantages for each information set, and the exact NashConv as evaluation."""

    curves = ("nash_conv", "value", "entropy", "kl")
    shares_prompts = True
    options: Options

    def task_seed(self, update: int, index: int) -> int:
        """Return the seed of a group: the six deals take turns, as their luck would be most of the noise."""
        seeds = list(seeds_of_deals().values())
        return seeds[index % len(seeds)]

    def training_rows(self, episodes: Sequence[Episode], update: int) -> dict[str, list[TrainingRow]]:
        """Return the rows with an advantage for each move, so that all information sets learn at the same rate."""
        assert self.prompts is not None, "the adapters are created first"
        moves = [
            move
            for one in episodes
            for part in one.trajectories.values()
            if part.trainable
            for move in moves_of(part, one.task.group, self.prompts)
        ]
        at_prompt: dict[tuple[int, ...], list[Move]] = {}
        for move in moves:
            at_prompt.setdefault(move.prompt, []).append(move)
        advantages: dict[int, float] = {}
        for same in at_prompt.values():
            found = advantages_of(same, alpha_at(self.options, update), self.options.invalid_reward)
            advantages |= {id(move): advantage for move, advantage in zip(same, found, strict=True)}
        rows: dict[int, tuple[Move, list[float]]] = {}
        for move in moves:
            rows.setdefault(id(move.row), (move, []))[1].append(advantages[id(move)])
        by_agent: dict[str, list[TrainingRow]] = {}
        for move, of_row in rows.values():
            by_agent.setdefault(move.agent, []).append(TrainingRow(move.row, tuple(of_row), move.deal))
        return by_agent

    def evaluate(self) -> dict[str, float]:
        """Return the exact NashConv and value of the newest policy, and the smallest probability of a legal reply."""
        if not self.options.eval_every:
            return {}
        policy, legal = self.read_policy()
        return {"nash_conv": nash_conv(policy), "value": game_value(policy), "legal": legal}

    def read_policy(self) -> tuple[dict[str, float], float]:
        """Return the probability of betting at each information set, and the smallest one of any legal reply."""
        prompts = self.prompts
        assert prompts is not None, "the adapters are created first"
        policies = self.policies()
        pending: list[tuple[Situation, int, Any]] = []
        for situation in situations(prompts):
            for word in situation.words:
                reply = [*prompts.encode(word), *prompts.end]
                future = policies.sampler_of(situation.agent).logprobs(situation.prompt, reply)
                pending.append((situation, len(reply), future))
        chances = [
            math.exp(sum(self.connection.result(future, "probabilities")[-length:]))
            for _, length, future in pending
        ]
        bets, legal = dict[str, float](), 1.0
        for index in range(0, len(pending), 2):
            passing, betting = chances[index], chances[index + 1]
            bets[pending[index][0].name] = betting / (passing + betting)
            legal = min(legal, passing + betting)
        return bets, legal

    def finish(self) -> dict[str, Any]:
        """Save the policy, and return the results with its exact NashConv."""
        policy, legal = self.read_policy()
        path = self.options.folder / "policy.json"
        with writing(path):
            path.write_text(json.dumps(policy, indent=2) + "\n", encoding="utf-8")
        return {
            "NashConv": nash_conv(policy),
            "NashConv before training": self.log.rows[0].get("nash_conv"),
            "value for player_0": game_value(policy),
            "value at the equilibrium": -1 / 18,
            "smallest probability of a legal reply": legal,
            **super().finish(),
        }

    def is_done(self) -> bool:
        """Return whether the NashConv is below the target, or all hands were played."""
        reached = self.log.rows[-1].get("nash_conv")
        return super().is_done() or (reached is not None and reached < self.options.target_nash_conv)


def alpha_at(options: Options, update: int) -> float:
    """Return the weight of the entropy bonus, which fades geometrically."""
    done = min(1.0, update / (options.updates or FADING_UPDATES))
    return options.alpha * (options.alpha_end / options.alpha) ** done


@dataclass(frozen=True)
class Move:
    """A reply of a player: what it had read, its log-probability, and the player's return."""

    agent: str
    deal: int
    row: TokenRow
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    logprob: float
    reward: float
    is_word: bool
    """Whether it is exactly one of the words that its prompt offers."""


def moves_of(part: Trajectory, deal: int, prompts: Prompts) -> Iterator[Move]:
    """Return the moves of a player in a hand of the group ``deal``."""
    last = part.rows[-1].spans[-1]
    for row in part.rows:
        for start, end in row.spans:
            reply = tuple(row.tokens[start:end])
            is_refused = part.invalid > 0 and row is part.rows[-1] and (start, end) == last
            logprob = sum(row.logprobs[start:end])
            prompt = tuple(row.tokens[:start])
            is_word = reply in _offered(prompts, prompt) and not is_refused
            yield Move(part.agent, deal, row, prompt, reply, logprob, part.reward, is_word)


def _offered(prompts: Prompts, prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the tokens of the two words that a prompt offers; after a bet the game takes others for them, too."""
    words = WORDS["fold or call" in prompts.decode(prompt)]
    return [(*prompts.encode(word), *prompts.end) for word in words]


def advantages_of(moves: Sequence[Move], alpha: float, other_reward: float) -> list[float]:
    """Return the advantage of each of the moves after one prompt.

    The two words get half the difference of their values, each shared by its replies, so that a rare word learns as
    fast as a frequent one. The value is the return with the entropy bonus. The difference is reduced if a word is so
    rare that its value is little more than noise. A reply that is no word gets a share of ``other_reward``.
    """
    words = sorted({move.reply for move in moves if move.is_word})
    found = {word: [move for move in moves if move.is_word and move.reply == word] for word in words}
    halves: dict[tuple[int, ...], float] = {}
    if len(words) == 2:
        one, other = (found[word] for word in words)
        bonus = -alpha * (one[0].logprob - other[0].logprob)
        certainty = min(1.0, LARGEST_WEIGHT * min(len(one), len(other)) / len(moves))
        half = certainty * (difference_of_returns(one, other) + bonus) / 2
        halves = {words[0]: half, words[1]: -half}
    elif len(words) == 1:  # the other word was not tried: only the entropy bonus has an opinion about it
        logprob = found[words[0]][0].logprob
        unlikely = math.log(max(1.0 - math.exp(logprob), SMALLEST_CHANCE))
        halves = {words[0]: -alpha * (logprob - unlikely) / 2}
    return [
        halves[move.reply] / len(found[move.reply]) if move.is_word else other_reward / len(moves)
        for move in moves
    ]


def difference_of_returns(one: Sequence[Move], other: Sequence[Move]) -> float:
    """Return the mean difference of the returns of two words, compared within each deal, which removes its luck.

    Deals are weighted by the number of comparisons. It is 0 if no deal has both words.
    """
    total = weights = 0.0
    for deal in {move.deal for move in one}:
        ours = [move.reward for move in one if move.deal == deal]
        theirs = [move.reward for move in other if move.deal == deal]
        if theirs:
            weight = len(ours) * len(theirs) / (len(ours) + len(theirs))
            total += weight * (sum(ours) / len(ours) - sum(theirs) / len(theirs))
            weights += weight
    return total / weights if weights else 0.0


@dataclass(frozen=True)
class Situation:
    """What a player has read at an information set, and the words for its two moves: passing, betting."""

    name: str
    agent: str
    prompt: list[int]
    words: tuple[str, str]


def situations(prompts: Prompts) -> Iterator[Situation]:
    """Play every history with every card, and return what the player to move has read."""
    with closing(ChatGame(envweave_gym.make(ID))) as game:
        for name in INFORMATION_SETS:
            player = len(name[1:]) % 2
            seed = next(seed for cards, seed in seeds_of_deals().items() if cards[player] == name[0])
            yield _situation(game, prompts, name, seed)


@cache
def seeds_of_deals() -> dict[str, int]:
    """Return a seed for each deal, named by the cards of both players, such as ``"JK"``."""
    env = envweave_gym.make(ID, api="parallel")
    seeds: dict[str, int] = {}
    for seed in range(SEEDS_TRIED):
        _, infos = env.reset(seed=seed)
        seeds.setdefault("".join(_card(infos, agent) for agent in env.possible_agents), seed)
    env.close()
    return seeds


def _card(infos: dict[str, Any], agent: str) -> str:
    text = envweave_gym.messages_of(infos, agent)[0]["content"]
    return next(letter for letter, name in CARD_NAMES.items() if text.endswith(f"is the {name}."))


def _situation(game: ChatGame, prompts: Prompts, name: str, seed: int) -> Situation:
    """Play the moves of an information set's history, and return what the player to move has read."""
    game.reset(seed)
    talks = {role: Conversation(prompts, game.history(role)) for role in game.roles}
    history, so_far = name[1:], ""
    while True:
        [player] = game.to_reply()
        prompt = talks[player].prompt()
        words = WORDS["b" in so_far]
        if so_far == history:
            return Situation(name, player, prompt, words)
        word = words["pb".index(history[len(so_far)])]
        reply = [*prompts.encode(word), *prompts.end]
        game.reply(player, talks[player].answer(reply, [0.0] * len(reply)))
        so_far += history[len(so_far)]


def train(options: Options) -> dict[str, Any]:
    """Train, save the policy, and return the results."""
    with KuhnTrainer(ID, options) as trainer:
        return trainer.run()


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
