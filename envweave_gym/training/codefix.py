"""Demo that trains a two-layer transformer encoder on CodeFix from scratch by policy gradient, in one file.

    python -m envweave_gym.training.codefix --num-envs 32

An episode is one step: read a program, choose the operator that fixes it, get 1.0 if its tests pass. The
vector environment resets in the same step, so every row of every step is an episode. The final evaluation
draws programs with seeds that were not used in training. Some of these programs may have occurred in training all
the same, so the success on the others is reported too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

import envweave_gym
from envweave_gym.core.faults import need
from envweave_gym.training.options import CommonOptions, demo_main, option
from envweave_gym.training.run_metrics import RunMetrics, summary

if TYPE_CHECKING:
    import torch
    from torch import nn

ID = "envweave/CodeFix-v0"
HELD_OUT_SEED = 1_000_000_000
"""Base of the evaluation's seeds, far above those of the training."""
HEADS = 4


@dataclass
class Options(CommonOptions):
    """The command-line options of the CodeFix demo, beyond those of every demo."""

    demo: ClassVar[str] = "codefix"

    num_envs: int = option(32, "environments stepped at once")
    episodes: int = option(100_000, "most episodes to learn from")
    target: float = option(0.99, "stop when the moving average of success reaches this")
    steps: int = option(8, "vector steps between two updates")
    learning_rate: float = option(1e-3, "step size of Adam")
    entropy: float = option(0.05, "weight of the entropy bonus, which keeps the policy curious", least=0)
    width: int = option(64, "size of the token embeddings")
    evaluation: int = option(2000, "programs of the final evaluation, with seeds never trained on")
    threads: int = option(1, "CPU threads of torch; more than there are idle cores slow it down")

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for a width that is not a multiple of the number of attention heads."""
        super().__post_init__()
        if self.width % HEADS:
            raise ValueError(
                f"--width {self.width} is not shared evenly by {HEADS} heads; give a multiple of {HEADS}"
            )


def build_policy(vocabulary: int, length: int, actions: int, width: int) -> nn.Module:
    """Build the policy network: token and position embeddings, two encoder layers, mean pooling, action logits.

    Padding is moved to the end and cut off before the encoder, which saves half of its work.
    """
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
            self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
            layer = nn.TransformerEncoderLayer(
                width, HEADS, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, actions))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            # A stable sort keeps the order of the real tokens.
            real = tokens != 0
            order = real.int().argsort(dim=1, descending=True, stable=True)[:, : int(real.sum(1).max())]
            tokens, real = tokens.gather(1, order), real.gather(1, order).unsqueeze(-1)
            embedded = self.tokens(tokens) + self.positions[order]
            encoded = self.encoder(embedded, src_key_padding_mask=~real.squeeze(-1))
            return self.head((encoded * real).sum(1) / real.sum(1))

    return Policy()


class Learner:
    """The policy, its optimiser, and the set of the programs that it was trained on."""

    def __init__(self, env: Any, options: Options) -> None:
        import torch

        torch.set_num_threads(options.threads)
        # Layers draw their weights from the global generator, which is restored below.
        generator_state = torch.random.get_rng_state()
        torch.manual_seed(options.seed)
        space = env.single_observation_space
        vocabulary = int(space.high.max()) + 1
        actions = int(env.single_action_space.n)
        self.policy = build_policy(vocabulary, space.shape[0], actions, options.width)
        torch.random.set_rng_state(generator_state)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=options.learning_rate)
        self.entropy = options.entropy
        self.seen: set[bytes] = set()

    def act(self, observations: Any) -> Any:
        """Sample an action for each row from the policy."""
        import torch

        with torch.no_grad():
            chances = self.policy(torch.from_numpy(observations)).softmax(-1)
        return torch.multinomial(chances, 1, generator=self.generator).squeeze(-1).numpy()

    def best(self, observations: Any) -> Any:
        """Return the most probable action of each row."""
        import torch

        with torch.no_grad():
            return self.policy(torch.from_numpy(observations)).argmax(-1).numpy()

    def learn(self, observations: Any, actions: Any, rewards: Any) -> float:
        """Update the policy by one gradient step of REINFORCE, and return the loss."""
        import torch

        self.seen.update(row.tobytes() for row in observations)
        log_chances = self.policy(torch.from_numpy(observations)).log_softmax(-1)
        chosen = log_chances.gather(1, torch.from_numpy(actions).unsqueeze(1)).squeeze(1)
        advantages = torch.from_numpy(rewards - rewards.mean()).float()  # the batch's mean is the baseline
        curiosity = -(log_chances.exp() * log_chances).sum(-1).mean()
        loss = -(advantages * chosen).mean() - self.entropy * curiosity
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def make_env(options: Options, num_envs: int) -> Any:
    """Make the vector of environments, in same-step autoreset mode."""
    return envweave_gym.make(ID, num_envs=num_envs, autoreset_mode="SameStep", **options.backend_arguments)


def play(env: Any, observations: Any, learner: Learner, steps: int) -> tuple[tuple[Any, Any, Any], Any]:
    """Play ``steps`` episodes in every row.

    Return their programs, actions and rewards, and the next programs.
    """
    batches = []
    for _ in range(steps):
        actions = learner.act(observations)
        following, rewards, _, _, infos = env.step(actions)
        # False in rows whose server was lost: their reward of 0 says nothing about the action.
        played = envweave_gym.trainable(infos)
        batches.append((observations[played], actions[played], rewards[played]))
        observations = following
    seen, actions, rewards = (np.concatenate(column) for column in zip(*batches, strict=True))
    return (seen, actions, rewards), observations


def evaluate(learner: Learner, options: Options) -> dict[str, float]:
    """Return the success rates on all held-out programs, and on those that did not occur in training."""
    env = make_env(options, options.evaluation)
    observations, _ = env.reset(seed=HELD_OUT_SEED + options.seed)
    _, rewards, *_ = env.step(learner.best(observations))
    # Every episode has one step, so one step of all rows is the whole evaluation.
    env.close()
    new = np.array([row.tobytes() not in learner.seen for row in observations])
    return {
        "success on held-out programs": float(rewards.mean()),
        "share of them never seen in training": float(new.mean()),
        "success on those": float(rewards[new].mean()) if new.any() else float("nan"),
    }


def train(options: Options) -> dict[str, Any]:
    """Train, write the metrics, save the weights, and return the results."""
    torch = need("torch", "train", "training on CodeFix")
    tqdm = need("tqdm", "demo", "the progress bar").tqdm
    env = make_env(options, options.num_envs)
    log = RunMetrics(options.folder, ("success", "loss"))
    learner = Learner(env, options)
    before = evaluate(learner, options)["success on held-out programs"]
    episodes, average = 0, 0.0
    with log:
        observations, _ = env.reset(seed=options.seed)
        with tqdm(total=options.episodes, unit="episode", desc="CodeFix") as bar:
            while episodes < options.episodes and average < options.target:
                batch, observations = play(env, observations, learner, options.steps)
                loss = learner.learn(*batch)
                success, played = float(batch[2].mean()), len(batch[2])
                # An exponential average, as the success of one batch is noisy.
                average += 0.05 * (success - average)
                episodes += played
                log.write(episodes=episodes, success=success, loss=loss)
                bar.update(min(played, options.episodes - bar.n))
                bar.set_postfix(success=f"{average:.2f}")
        torch.save(learner.policy.state_dict(), log.folder / "policy.pt")
        result: dict[str, Any] = {
            **evaluate(learner, options),
            "success before training": before,
            "episodes": episodes,
            "seconds": round(log.seconds, 1),
            "files": f"{log.folder}/policy.pt, {log.folder}/metrics.jsonl, {log.folder}/metrics.png",
        }
    env.close()
    print(summary(f"{ID}, policy gradient, backend {options.backend}", result))
    return result


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
