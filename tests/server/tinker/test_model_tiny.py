"""The tiny base model: what it answers, how it is cached, and that reinforcement learning moves it."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from envweave_gym_server.tinker.models import tiny_model
from envweave_gym_server.tinker.models.base_model import BaseModel, load_base
from envweave_gym_server.tinker.models.decoding import SampledSequence, SampleRequest, sample
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.models.tiny_corpus import IM_END, chat, corpus
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME, tiny_model_folder, train_tiny_model
from envweave_gym_server.tinker.models.training_pass import forward_backward

pytestmark = pytest.mark.slow
REPLY = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tiny() -> BaseModel:
    return load_base(TINY_NAME, tiny_model_folder())


def prompt(base: BaseModel, *turns: str) -> list[int]:
    text = "".join(piece.text for piece in chat(*(("user", turn) for turn in turns)))
    return base.tokenizer.encode(text + REPLY).ids


def answers(base: BaseModel, *turns: str, count: int = 1, temperature: float = 0.0) -> list[str]:
    request = SampleRequest(prompt(base, *turns), count, 6, temperature, stop_ids=base.eos)
    [result] = sample(base.transformer, None, [request], base.decode)
    return [base.decode(sequence.tokens) for sequence in result.sequences]


def test_the_chat_template_renders_the_texts_of_the_corpus(tiny: BaseModel):
    tokenizer = AutoTokenizer.from_pretrained(tiny.tokenizer_folder)
    chats = [{"role": "user", "content": "pick A"}, {"role": "assistant", "content": "B"}]
    text = tokenizer.apply_chat_template(chats, tokenize=False)
    assert text == "".join(piece.text for piece in chat(("user", "pick A"), ("assistant", "B")))
    tokens = tokenizer.apply_chat_template(chats[:1], add_generation_prompt=True, return_dict=False)
    assert tokens == prompt(tiny, "pick A")
    assert tiny.eos == {tokenizer.eos_token_id}
    assert tokenizer.decode(list(tiny.eos)) == IM_END


def test_the_corpus_is_the_same_for_the_same_seed():
    first, same, other = corpus(1), corpus(1), corpus(2)
    texts = [first() for _ in range(50)]
    assert texts == [same() for _ in range(50)]
    assert texts != [other() for _ in range(50)]


def test_it_repeats_words(tiny: BaseModel):
    words = ["moon", "dog", "A", "D"]
    assert [answers(tiny, f"say {word}") for word in words] == [[f"{word}{IM_END}"] for word in words]


@pytest.mark.parametrize("letter", "ABCD")
def test_it_picks_letters_at_random(tiny: BaseModel, letter: str):
    counts = Counter(answers(tiny, f"pick {letter}", count=400, temperature=1.0))
    assert 0.1 < counts[letter + IM_END] / 400 < 0.45
    assert sum(counts[other + IM_END] for other in "ABCD") >= 0.9 * 400


def test_it_moves_legally_and_at_random_in_poker(tiny: BaseModel):
    draw, hands = corpus(7), set[str]()
    while len(hands) < 8:
        *read, move, _ = [piece.text for piece in draw()]
        if move.removesuffix(IM_END) in ("bet", "check", "fold", "call"):
            hands.add("".join(read))
    for hand in hands:
        words = (
            ("fold", "call") if "fold or call." in hand.rsplit("It is your move", 1)[1] else ("check", "bet")
        )
        tokens = tiny.tokenizer.encode(hand).ids
        request = SampleRequest(tokens, 1, 1, 0.0, top_logprobs=2)
        [result] = sample(tiny.transformer, None, [request], tiny.decode)
        best = {tiny.decode([token]): math.exp(value) for token, value in result.sequences[0].top_logprobs[0]}
        assert best.keys() == set(words)
        assert min(best.values()) > 0.2
        assert sum(best.values()) > 0.9


def test_a_second_call_does_not_train_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiny_model, "_STEPS", 2)
    folder = tiny_model_folder(tmp_path)
    assert folder.parent == tmp_path
    monkeypatch.setattr(tiny_model, "train_tiny_model", None)
    assert tiny_model_folder(tmp_path) == folder


def test_training_it_twice_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiny_model, "_STEPS", 3)
    contents: list[dict[str, bytes]] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        train_tiny_model(tmp_path / name)
        contents.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"} <= contents[
        0
    ].keys()


def learn_to_pick(base: BaseModel, seed: int, updates: int = 40) -> list[float]:
    """Group-centred policy gradient on "pick X"; returns the success of each update."""
    adapter = LoraAdapter(base.transformer.config, 32, seed)
    optimiser = torch.optim.AdamW(adapter.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    chooser, successes = random.Random(seed), list[float]()
    for update in range(updates):
        letters = [chooser.choice("ABCD") for _ in range(8)]
        prompts = [prompt(base, f"pick {letter}") for letter in letters]
        requests = [
            SampleRequest(one, 8, 4, stop_ids=base.eos, seed=seed * 10**6 + update * 8 + index)
            for index, one in enumerate(prompts)
        ]
        results = sample(base.transformer, adapter.snapshot(), requests, base.decode)
        rows: list[Datum] = []
        rewards: list[float] = []
        for letter, tokens, result in zip(letters, prompts, results, strict=True):
            own = [float(base.decode(sequence.tokens) == letter + IM_END) for sequence in result.sequences]
            mean = sum(own) / len(own)
            rewards += own
            rows += [
                datum_of(tokens, sequence, reward - mean)
                for sequence, reward in zip(result.sequences, own, strict=True)
            ]
        forward_backward(base.transformer, adapter, rows, "importance_sampling", {})
        optimiser.step()
        optimiser.zero_grad()
        successes.append(sum(rewards) / len(rewards))
    return successes


def datum_of(tokens: list[int], sequence: SampledSequence, advantage: float) -> Datum:
    zeros = [0.0] * (len(tokens) - 1)
    inputs = {
        "target_tokens": torch.tensor([*tokens, *sequence.tokens][1:]),
        "logprobs": torch.tensor([*zeros, *sequence.logprobs]),
        "advantages": torch.tensor([*zeros, *[advantage] * len(sequence.tokens)]),
    }
    return Datum([*tokens, *sequence.tokens][:-1], inputs)


@pytest.mark.parametrize("seed", range(3))
def test_reinforcement_learning_moves_it_from_chance_to_nearly_always(tiny: BaseModel, seed: int):
    successes = learn_to_pick(tiny, seed)
    assert sum(successes[:2]) / 2 < 0.5
    assert sum(successes[-5:]) / 5 >= 0.9
