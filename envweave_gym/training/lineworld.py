"""Demo that trains a linear softmax policy on LineWorld by policy gradient, in plain NumPy and one file.

    python -m envweave_gym.training.lineworld --num-envs 16 --episodes 400

Each update plays ``horizon`` steps of a vector of environments, discounts the rewards back from the ends of the
episodes, and follows the gradient of REINFORCE with Adam. Rows whose step was no action of the policy (resets,
faults) are masked out by ``trainable(infos)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import envweave_gym
from envweave_gym.core.faults import need
from envweave_gym.training.options import CommonOptions, demo_main, option
from envweave_gym.training.run_metrics import RunMetrics, summary

ID = "envweave/LineWorld-v0"
HELD_OUT_SEED = 1_000_000
"""Base of the evaluation's seeds, far above those of the training."""
Floats = NDArray[np.floating[Any]]


@dataclass
class Options(CommonOptions):
    """The command-line options of the LineWorld demo, beyond those of every demo."""

    demo: ClassVar[str] = "lineworld"

    num_envs: int = option(16, "environments stepped at once")
    episodes: int = option(400, "episodes to learn from")
    horizon: int = option(32, "vector steps between two updates")
    learning_rate: float = option(0.1, "step size of Adam")
    discount: float = option(0.95, "how much a reward counts one step earlier", least=0, most=1)
    evaluation: int = option(500, "episodes of the final evaluation, on seeds never trained on")
    length: int = option(11, "cells of the line")
    slip: float = option(0.1, "probability that a step goes the other way", least=0, most=1)


class Policy:
    """A softmax policy over ``features @ weights``, trained with Adam."""

    def __init__(self, rng: np.random.Generator, features: int = 3, actions: int = 2) -> None:
        self.weights = rng.normal(0.0, 0.01, (features, actions))
        self._mean, self._square, self._updates = np.zeros_like(self.weights), np.zeros_like(self.weights), 0

    def probabilities(self, observations: NDArray[np.float32]) -> Floats:
        """Return the probability of each action, row by row."""
        logits = self._features(observations) @ self.weights
        exps = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return exps / exps.sum(axis=-1, keepdims=True)

    def act(self, observations: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
        """Sample an action for each row from the policy."""
        chances = self.probabilities(observations)
        # Of two actions, one number decides.
        return (rng.random(len(chances)) > chances[:, 0]).astype(np.int64)

    def improve(
        self, observations: NDArray[np.float32], actions: NDArray[np.int64], advantages: Floats, rate: float
    ) -> None:
        """Update the weights by one step of Adam along the policy gradient; ``rate`` is the step size."""
        errors = np.eye(self.weights.shape[1])[actions] - self.probabilities(observations)
        gradient = self._features(observations).T @ (errors * advantages[:, None]) / len(actions)
        self._updates += 1
        # Adam with beta1 = 0.9 and beta2 = 0.999.
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        mean = self._mean / (1 - 0.9**self._updates)
        square = self._square / (1 - 0.999**self._updates)
        self.weights += rate * mean / (np.sqrt(square) + 1e-8)

    @staticmethod
    def _features(observations: NDArray[np.float32]) -> Floats:
        ones = np.ones((*observations.shape[:-1], 1))
        return np.concatenate([2.0 * observations - 1.0, ones], axis=-1)


@dataclass
class Rollout:
    """The results of ``horizon`` vector steps, as arrays of shape (time, environment, …)."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: Floats
    ended: NDArray[np.bool_]
    trainable: NDArray[np.bool_]

    def returns(self, discount: float) -> Floats:
        """Return the discounted rewards from each step to the end of its episode, or of the rollout."""
        following = np.zeros(self.rewards.shape[1])
        returns = np.empty_like(self.rewards)
        for t in range(len(self.rewards) - 1, -1, -1):
            # No reward counts beyond the end of its episode.
            following = self.rewards[t] + discount * following * ~self.ended[t]
            returns[t] = following
        return returns


def play(
    env: Any, observations: Any, policy: Policy, horizon: int, rng: np.random.Generator
) -> tuple[Rollout, Any]:
    """Play ``horizon`` steps of every environment; return them, and the next observations."""
    steps = []
    for _ in range(horizon):
        actions = policy.act(observations, rng)
        seen = observations
        observations, rewards, terminated, truncated, infos = env.step(actions)
        steps.append((seen, actions, rewards, terminated | truncated, envweave_gym.trainable(infos)))
    return Rollout(*(np.stack(column) for column in zip(*steps, strict=True))), observations


def learn(policy: Policy, rollout: Rollout, options: Options) -> None:
    """Update the policy with a rollout; the advantages are its returns, normalised to mean 0 and deviation 1."""
    mask = rollout.trainable
    returns = rollout.returns(options.discount)[mask]
    advantages = (returns - returns.mean()) / (returns.std() + 1e-8)
    policy.improve(rollout.observations[mask], rollout.actions[mask], advantages, options.learning_rate)


def evaluate(policy: Policy, options: Options) -> float:
    """Return the share of episodes, on seeds never trained on, in which the policy reaches the goal."""
    env, rng = make_env(options, options.evaluation), np.random.default_rng(options.seed)
    observations, _ = env.reset(seed=HELD_OUT_SEED + options.seed)
    reached = np.zeros(options.evaluation, np.bool_)
    over = np.zeros(options.evaluation, np.bool_)
    while not over.all():
        observations, _, terminated, truncated, _ = env.step(policy.act(observations, rng))
        reached |= terminated & ~over
        over |= terminated | truncated
    env.close()
    return float(reached.mean())


def make_env(options: Options, num_envs: int) -> Any:
    """Make the vector of environments."""
    return envweave_gym.make(
        ID, num_envs=num_envs, length=options.length, slip=options.slip, **options.backend_arguments
    )


def train(options: Options) -> dict[str, Any]:
    """Train, write the metrics, and return the results."""
    tqdm = need("tqdm", "demo", "the progress bar").tqdm
    rng = np.random.default_rng(options.seed)
    policy, env = Policy(rng), make_env(options, options.num_envs)
    log = RunMetrics(options.folder, ("success", "return", "length"))
    before = evaluate(policy, options)
    episodes = steps = 0
    with log:
        with tqdm(total=options.episodes, unit="episode", desc="LineWorld") as bar:
            observations, _ = env.reset(seed=options.seed)
            while episodes < options.episodes:
                rollout, observations = play(env, observations, policy, options.horizon, rng)
                learn(policy, rollout, options)
                ended = int(rollout.ended.sum())
                steps += int(rollout.trainable.sum())
                log.write(episodes=episodes + ended, **measures(rollout))
                bar.update(min(ended, options.episodes - episodes))
                bar.set_postfix(success=f"{log.rows[-1].get('success', 0.0):.2f}")
                episodes += ended
        success = evaluate(policy, options)
        result = {
            "success on held-out seeds": success,
            "success before training": before,
            "episodes": episodes,
            "steps": steps,
            "seconds": round(log.seconds, 2),
            "files": f"{log.folder}/metrics.jsonl, {log.folder}/metrics.png",
        }
    env.close()
    print(summary(f"{ID}, policy gradient, backend {options.backend}", result))
    return result


def measures(rollout: Rollout) -> dict[str, float]:
    """Return metrics of a rollout: the success rate of ended episodes, and rewards and steps per episode."""
    ended = int(rollout.ended.sum())
    if not ended:
        return {}
    return {
        "success": float((rollout.rewards[rollout.ended] > 0).sum() / ended),
        "return": float(rollout.rewards.sum() / ended),
        "length": float(rollout.trainable.sum() / ended),
    }


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
