"""How long the demos take and what they reach, each once from the command line's defaults."""

from __future__ import annotations

import contextlib
import io
import tempfile
from typing import Any

from benchmarks.rounds import show
from envweave_gym.training import codefix, kuhn, lineworld

DEMOS: dict[str, tuple[Any, str]] = {
    "lineworld": (lineworld, "success on held-out seeds"),
    "kuhn": (kuhn, "NashConv/2"),
    "codefix": (codefix, "success on held-out programs"),
}
SEEDS = (0, 1, 2)


def main() -> None:
    rows = []
    for name, (demo, measure) in DEMOS.items():
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
                result = demo.train(demo.Options(seed=seed, out=out))
            rows.append(
                {
                    "demo": name,
                    "seed": seed,
                    "measure": measure,
                    "value": result[measure],
                    "seconds": result["seconds"],
                }
            )
    show("Training: the demos with their defaults", rows)


if __name__ == "__main__":
    main()
