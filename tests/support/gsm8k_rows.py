"""The rows of GSM8K that a machine has."""

from __future__ import annotations

from collections.abc import Sequence

from absent import needs_data

from envweave_gym.data.gsm8k import GSM8K, SPLITS, Problem
from envweave_gym.data.sources import rows_of
from envweave_gym.data.word_problems.generated_problems import problems

SYNTHETIC = [*problems("train"), *problems("test")]


def real_rows(split: str) -> Sequence[Problem]:
    """The rows of a split in the folder that ENVWEAVE_DATA names."""
    needs_data(f"gsm8k_{split}.jsonl")
    return rows_of(GSM8K, GSM8K.hub, split)


def all_real_rows() -> list[Problem]:
    """The rows of both splits."""
    return [row for split in SPLITS for row in real_rows(split)]
