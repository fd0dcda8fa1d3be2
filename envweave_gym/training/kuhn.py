"""Demo that trains a policy on Kuhn poker by policy gradient in self-play, in one file.

    python -m envweave_gym.training.kuhn

Each update plays ``hands`` hands of the current policy against itself. The gradient is the gain of betting
over passing, less an entropy term that fades. A policy in self-play circles around the equilibrium, but its average
over all updates converges to it. So the average is saved, and its exact NashConv is reported: the sum of the gains
of a perfect opponent in either seat.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import envweave_gym
from envweave_gym.core.faults import need
from envweave_gym.envs.games.kuhn_rules import (
    CARDS,
    INFORMATION_SETS,
    MOVES,
    game_value,
    nash_conv,
)
from envweave_gym.training.options import CommonOptions, demo_main, option
from envweave_gym.training.run_metrics import RunMetrics, summary

ID = "envweave/KuhnPoker-v0"
INDEX = {key: index for index, key in enumerate(INFORMATION_SETS)}
"""Indices of the policy's entries, by the name of the information set."""
LARGEST_LOGIT = 6.0  # odds of 400 to 1
Floats = NDArray[np.float64]


@dataclass
class Options(CommonOptions):
    """The command-line options of the Kuhn poker demo, beyond those of every demo."""

    demo: ClassVar[str] = "kuhn"

    updates: int = option(300, "updates of the policy")
    hands: int = option(500, "hands played between two updates")
    learning_rate: float = option(0.3, "step size on the logits")
    entropy: float = option(
        0.1, "weight of the entropy term at first; it fades as 1 / (1 + update / 50)", least=0
    )
    exploration: float = option(
        0.1, "how often a player acts at random, so that every choice is tried", least=0, most=1
    )


def read_observation(observation: NDArray[np.float32]) -> str:
    """Return the name of an information set (the card and the moves so far), read from an observation."""
    bits = observation.tolist()
    moves = bits[len(CARDS) :]
    history = "".join(MOVES[i % 2] for i, made in enumerate(moves) if made)
    return CARDS[bits.index(1.0)] + history


def play_hand(env: Any, bets: Floats, rng: np.random.Generator) -> list[tuple[int, int, float]]:
    """Play one hand; return the information set, the action and the player's gain of every decision."""
    env.reset()
    path: list[tuple[str, int, int]] = []
    while not any(env.terminations.values()):
        agent = env.agent_selection
        known = INDEX[read_observation(env.observe(agent))]
        action = int(rng.random() < bets[known])
        path.append((agent, known, action))
        env.step(action)
    won = dict(env.rewards)
    return [(known, action, won[agent]) for agent, known, action in path]


def worth_of_betting(env: Any, policy: Floats, options: Options, rng: np.random.Generator) -> Floats:
    """Play hands, and return how much more betting won than passing on average, by information set.

    It is 0 where only one of the two was tried.
    """
    bets = (1 - options.exploration) * policy + options.exploration / 2
    sums, counts = np.zeros((len(INDEX), 2)), np.zeros((len(INDEX), 2))
    for _ in range(options.hands):
        for known, action, won in play_hand(env, bets, rng):
            sums[known, action] += won
            counts[known, action] += 1
    means = sums / np.maximum(counts, 1)
    return np.where((counts > 0).all(axis=1), means[:, 1] - means[:, 0], 0.0)


def as_mapping(policy: Floats) -> dict[str, float]:
    """Return the probability of betting, by the name of the information set."""
    return {key: float(policy[index]) for key, index in INDEX.items()}


def train(options: Options) -> dict[str, Any]:
    """Train, save the average policy, and return the results."""
    tqdm = need("tqdm", "demo", "the progress bar").tqdm
    rng = np.random.default_rng(options.seed)
    env = envweave_gym.make(ID, api="aec", **options.backend_arguments)
    env.reset(seed=options.seed)
    logits = np.zeros(len(INDEX))
    total, weights = np.zeros(len(INDEX)), 0.0
    average = np.full(len(INDEX), 0.5)
    with RunMetrics(options.folder, ("nash_conv_half", "value")) as log:
        for update in tqdm(range(options.updates), unit="update", desc="KuhnPoker"):
            policy = 1 / (1 + np.exp(-logits))
            advantage = worth_of_betting(env, policy, options, rng)
            fading = options.entropy / (1 + update / 50)
            logits += options.learning_rate * (advantage - fading * logits)
            logits = np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
            weights += update + 1
            total += (update + 1) * policy  # later policies count more
            average = total / weights
            named = as_mapping(average)
            log.write(nash_conv_half=nash_conv(named) / 2, value=game_value(named))
        (log.folder / "policy.json").write_text(
            json.dumps(as_mapping(average), indent=2) + "\n", encoding="utf-8"
        )
        result = report(log.folder, average, options, log.seconds)
    env.close()
    print(summary(f"{ID}, self-play, backend {options.backend}", result))
    return result


def report(folder: Path, average: Floats, options: Options, seconds: float) -> dict[str, Any]:
    """Return the exact value and NashConv of the saved policy, and the figures of the run."""
    named = as_mapping(average)
    return {
        "NashConv/2": nash_conv(named) / 2,
        "NashConv/2 of betting at random": nash_conv(dict.fromkeys(INDEX, 0.5)) / 2,
        "value for player_0": game_value(named),
        "value at the equilibrium": -1 / 18,
        "hands": options.updates * options.hands,
        "seconds": round(seconds, 2),
        "files": f"{folder}/policy.json, {folder}/metrics.jsonl, {folder}/metrics.png",
    }


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
