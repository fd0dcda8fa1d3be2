"""The transformer's forward pass and the packing of its tokens."""

from __future__ import annotations

import random

import pytest
import torch
from random_models import CLASSES, reference_model, transformer_of

from envweave_gym_server.tinker.models import llama, prefix_packing
from envweave_gym_server.tinker.models.base_model import config_of
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.prefix_packing import cut_by_nodes, pack

SEQUENCES = [[1, 2, 3, 4, 5], [1, 2, 9], [7, 8], [1, 2, 3, 4, 5], [1, 2, 3]]


@pytest.mark.parametrize("written_out_tokens", [0, 100])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", CLASSES)
def test_packed_logits_are_those_of_transformers(
    family: str, tied: bool, written_out_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(llama, "WRITTEN_OUT_TOKENS", written_out_tokens)
    model = reference_model(family, tied=tied)
    ours = transformer_of(model)
    packed = pack(SEQUENCES)
    logits = ours.logits(ours.forward(packed, {}), {})
    for sequence, path in zip(SEQUENCES, packed.paths, strict=True):
        torch.testing.assert_close(logits[path], model(torch.tensor([sequence])).logits[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("written_out_tokens", [0, 100])
def test_logits_of_a_single_sequence_are_those_of_transformers(
    written_out_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(llama, "WRITTEN_OUT_TOKENS", written_out_tokens)
    model = reference_model()
    ours = transformer_of(model)
    packed = pack([SEQUENCES[0]])
    assert packed.is_one_sequence
    logits = ours.logits(ours.forward(packed, {}), {})
    torch.testing.assert_close(logits, model(torch.tensor(SEQUENCES[:1])).logits[0], rtol=0, atol=1e-5)


def test_every_distinct_prefix_is_one_node():
    packed = pack(SEQUENCES)
    prefixes = {tuple(row[: end + 1]) for row in SEQUENCES for end in range(len(row))}
    assert len(packed) == len(prefixes)
    for row, path in zip(SEQUENCES, packed.paths, strict=True):
        assert packed.tokens[path].tolist() == row
        assert packed.positions[path].tolist() == list(range(len(row)))


def random_rows() -> list[list[int]]:
    chooser = random.Random(0)
    return [[chooser.randrange(3) for _ in range(chooser.randrange(1, 9))] for _ in range(60)]


def test_logits_of_several_blocks_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_packing, "BLOCK_TOKENS", 8)
    model = reference_model()
    ours = transformer_of(model)
    packed = pack(random_rows())
    assert len(packed.blocks().seen) > 10
    logits = ours.logits(ours.forward(packed, {}), {})
    for sequence, path in zip(random_rows(), packed.paths, strict=True):
        torch.testing.assert_close(logits[path], model(torch.tensor([sequence])).logits[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [8, 1000])
def test_a_node_sees_itself_and_its_ancestors_only(length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_packing, "BLOCK_TOKENS", length)
    packed = pack(random_rows())
    blocks = packed.blocks()
    for path in packed.paths:
        block, offset = divmod(int(path[-1]), blocks.bias.shape[1])
        assert blocks.seen[block][blocks.bias[block, offset] == 0].tolist() == path.tolist()


def test_rows_without_a_common_prefix_have_blocks_of_their_own_length():
    """Attention of ten rows costs ten times that of one, not a hundred times."""
    rows = [[first, *range(99)] for first in range(10)]
    assert pack(rows).blocks().bias.numel() < 2 * 10 * pack(rows[:1]).blocks().bias.numel()


def test_pieces_stay_within_the_budget_unless_one_sequence_exceeds_it():
    rows = sorted([[1, 2, 3, index] for index in range(9)] + [[4] * 20])
    pieces = list(cut_by_nodes(rows, 8))
    assert [index for piece in pieces for index in piece] == list(range(len(rows)))
    sizes = [len(pack([rows[index] for index in piece])) for piece in pieces]
    assert [size for size, piece in zip(sizes, pieces, strict=True) if len(piece) > 1] == [8, 7]
    assert sizes[-1] == 20


def test_a_missing_weight_is_named():
    model = reference_model()
    weights = {name: weight for name, weight in model.state_dict().items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"'model\.norm\.weight'"):
        Transformer(config_of(model.config.to_dict()), weights)


def test_a_misshapen_weight_is_named():
    model = reference_model()
    weights = {**model.state_dict(), "model.norm.weight": torch.ones(3)}
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' has the shape \(3,\)"):
        Transformer(config_of(model.config.to_dict()), weights)
