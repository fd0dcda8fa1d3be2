"""A transformer of a hundred thousand parameters that calls the tool ``act`` with a letter, for tests of TRL."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STEPS = 100


def call_of_act(letter: str) -> str:
    """The reply that calls the tool ``act`` with a letter."""
    return f'<tool_call>\n{{"name": "act", "arguments": {{"action": "{letter}"}}}}\n</tool_call>'


def save_letter_caller(
    folder: Path,
    chat_template: str,
    tools: list[Any],
    instruction: str,
    call: Callable[[str], str] = call_of_act,
) -> None:
    """Train a model for some seconds to answer ``pick B`` with a tool call with any letter, and save it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    draws = random.Random(0)
    prompts = [[{"role": "user", "content": f"{instruction}pick {letter}"}] for letter in "ABCD"]
    blank = small_tokenizer([], chat_template)
    texts = [
        blank.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, tokenize=False)
        for prompt in prompts
    ]
    tokenizer = small_tokenizer([*texts, *map(call, "ABCD")], chat_template)
    openings = [tokenizer.encode(text) for text in texts]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(STEPS):
        rows = [
            [draws.choice(openings), tokenizer.encode(call(draws.choice("ABCD")) + SPECIAL[2])]
            for _ in range(8)
        ]
        loss = _loss(model, rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def small_tokenizer(texts: list[str], chat_template: str) -> Any:
    """Return a tokenizer of bytes and of what is frequent in ``texts``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    # Without the regex tokens may be longer than a word, so that prompts have few of them.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    names = {"pad_token": SPECIAL[0], "bos_token": SPECIAL[1], "eos_token": SPECIAL[2]}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=chat_template, **names)


def _loss(model: Any, rows: list[list[list[int]]]) -> Any:
    """Return the mean loss over the replies, padded on the right."""
    import torch

    longest = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, (prompt, reply) in enumerate(rows):
        whole = len(prompt) + len(reply)
        ids[row, :whole] = torch.tensor(prompt + reply)
        labels[row, len(prompt) : whole] = torch.tensor(reply)
    return model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
