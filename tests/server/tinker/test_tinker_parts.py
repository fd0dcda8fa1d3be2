"""Futures, samplers, records, checkpoints and connections by themselves: limits, and what is dropped first."""

from __future__ import annotations

import http.client
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flask import Flask

from envweave_gym_server.tinker import prompt_targets
from envweave_gym_server.tinker.api_errors import BadInput, Busy, Gone, NotFound
from envweave_gym_server.tinker.api_key import find_key
from envweave_gym_server.tinker.checkpoints import CheckpointFile, Checkpoints, checked_name, parts_of
from envweave_gym_server.tinker.engine import Engine, Sampling
from envweave_gym_server.tinker.futures import (
    FutureLimits,
    Futures,
    Reply,
    json_reply,
)
from envweave_gym_server.tinker.http_server import HttpServer
from envweave_gym_server.tinker.models.decoding import SampleRequest
from envweave_gym_server.tinker.models.decoding_batch import DecodingBatch
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.provenance import SampledRecords, Span
from envweave_gym_server.tinker.request_bodies import LoraConfig
from envweave_gym_server.tinker.samplers import Sampler, Samplers, Weights

# Futures


@pytest.mark.parametrize("sparse", [False, True])
def test_a_table_of_targets_has_at_most_a_number_of_values(monkeypatch: pytest.MonkeyPatch, sparse: bool):
    monkeypatch.setattr(prompt_targets, "MAX_VALUES", 4)
    for columns, fits in ((2, True), (3, False)):
        indices = ([0, columns, 2 * columns], [*range(columns)] * 2) if sparse else (None, None)
        table = prompt_targets.TokenTable([3] * 2 * columns, [2, columns], *indices)
        if fits:
            assert table.targets(3, 10).rows.tolist() == [0, 0, 1, 1]
        else:
            with pytest.raises(BadInput, match="has 6 values; give 4 at most"):
                table.targets(3, 10)


def done(futures: Futures, request_id: str, size: int = 10) -> None:
    future, _ = futures.add(request_id, "session")
    futures.finish(future, Reply(b"x" * size))


def test_a_repeated_request_finds_the_first_ones_future():
    futures = Futures()
    first, is_new = futures.add("a", "session")
    assert is_new
    assert futures.add("a", "session") == (first, False)


def test_more_pending_operations_than_the_limit_are_refused():
    futures = Futures(FutureLimits(pending=2))
    for name in "ab":
        futures.add(name, "session")
    with pytest.raises(Busy, match="2 operations"):
        futures.add("c", "session")
    assert futures.add("a", "session")[1] is False


def test_fetched_results_are_dropped_oldest_first():
    futures = Futures(FutureLimits(fetched=2))
    for name in "abc":
        done(futures, name)
        assert futures.wait(name, 0) is not None
    with pytest.raises(Gone):
        futures.wait("a", 0)
    assert futures.wait("c", 0) is not None


def test_results_over_the_limit_of_bytes_drop_fetched_ones_first():
    futures = Futures(FutureLimits(result_bytes=25))
    done(futures, "a")
    done(futures, "b")
    futures.wait("b", 0)
    done(futures, "c")
    assert futures.find("b") is None
    assert futures.find("a") is not None


def test_a_wait_for_an_operation_under_way_returns_nothing():
    futures = Futures()
    futures.add("a", "session")
    assert futures.wait("a", 0.01) is None


def test_a_wait_ends_when_its_session_does():
    futures = Futures()
    futures.add("a", "session")
    waits = threading.Thread(target=futures.wait, args=("a", 30))
    waits.start()
    futures.drop_session("session")
    waits.join(timeout=10)
    assert not waits.is_alive()


# The engine


@pytest.mark.parametrize("end", ["cancel", "session", "close"])
def test_sampling_that_nobody_wants_any_more_ends_at_its_next_token(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch, end: str
):
    began, go, steps = threading.Event(), threading.Event(), list[int]()

    def extend(batch: DecodingBatch, rows: Any, tokens: Any) -> Any:
        steps.append(len(rows))
        began.set()
        assert go.wait(20)
        return extend_batch(batch, rows, tokens)

    extend_batch = DecodingBatch.extend
    monkeypatch.setattr(DecodingBatch, "extend", extend)
    base: Any = SimpleNamespace(transformer=transformer, decode=str)
    futures = Futures()
    engine, one = Engine(futures), Weights(base, None)
    gone, _ = futures.add("gone", "theirs")
    kept, _ = futures.add("kept", "ours")
    engine.submit(Sampling(gone, one, SampleRequest([1, 2], 3, 40), lambda _: json_reply()))
    engine.submit(Sampling(kept, one, SampleRequest([3], 1, 4), lambda _: json_reply()))
    engine.start()
    assert began.wait(20)
    closing = threading.Thread(target=engine.close)
    if end == "cancel":
        futures.cancel("gone")
    elif end == "session":
        futures.drop_session("theirs")
    else:
        closing.start()
        while not engine._closed:
            closing.join(0.01)
    go.set()
    if end != "close":
        assert kept.done.wait(20)
        assert kept.reply == json_reply()
        assert gone.done.wait(20)
        assert gone.reply is None or gone.reply.failed
        closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert steps == ([4] if end == "close" else [4, 1, 1])


# Samplers


BASE_MODEL: Any = SimpleNamespace(name="base")


def weights(size: int) -> Weights:
    adapter: Any = SimpleNamespace(size=size)
    return Weights(BASE_MODEL, adapter)


def sampler(name: str, size: int, *, session: str = "session", load: Any = None) -> Sampler:
    return Sampler(name, session, BASE_MODEL, weights(size), load=load)


def test_snapshots_over_the_limit_are_dropped_by_their_last_use():
    samplers = Samplers(largest=25)
    for name in "ab":
        samplers.add(sampler(name, 10))
    samplers.find("a")
    samplers.add(sampler("c", 10))
    with pytest.raises(NotFound, match="took its memory"):
        samplers.find("b")
    assert samplers.find("a") is not None


@pytest.mark.parametrize("limits", [{"largest": 40}, {"most": 4}])
def test_a_session_with_many_snapshots_loses_its_own_and_not_those_of_others(limits: dict[str, int]):
    samplers = Samplers(**limits)
    samplers.add(sampler("modest", 10, session="modest"))
    for number in range(20):
        samplers.add(sampler(f"greedy {number}", 10, session="greedy"))
    assert samplers.of_session("modest") == ["modest"]
    assert samplers.of_session("greedy") == [f"greedy {number}" for number in (17, 18, 19)]


def test_the_snapshot_that_is_added_stays_however_large_it_is():
    samplers = Samplers(largest=25)
    for name in "ab":
        samplers.add(sampler(name, 10))
    samplers.add(sampler("large", 30, session="large"))
    assert (samplers.of_session("session"), samplers.of_session("large")) == ([], ["large"])


def test_weights_of_a_checkpoint_are_loaded_again():
    samplers = Samplers(largest=15)
    kept = samplers.add(sampler("a", 10, load=lambda: weights(10)))
    samplers.add(sampler("b", 10))
    assert kept.weights is None
    assert samplers.weights_of(samplers.find("a")).size == 10


# Provenance


def test_records_over_the_limit_forget_the_oldest():
    records = SampledRecords(largest=40)
    for name in "ab":
        records.add(name, "session", [1, 2], [3, 4, 5])
    records.add("c", "session", [1, 2], [3, 4, 5])
    span = [Span("a", 0, 2, is_sampled=False)]
    with pytest.raises(BadInput, match="not recorded"):
        records.check(span, [1, 2], "session", compares_prompts=True)
    records.check([Span("c", 0, 2, is_sampled=False)], [1, 2], "session", compares_prompts=True)


def test_a_sequence_of_another_session_is_not_known():
    records = SampledRecords()
    records.add("a", "theirs", [1], [2])
    with pytest.raises(BadInput, match="not recorded"):
        records.check([Span("a", 0, 1, is_sampled=True)], [2], "ours", compares_prompts=True)


# Checkpoints


def about(name: str = "one", expires: datetime | None = None) -> CheckpointFile:
    return CheckpointFile(
        run="s:train:0",
        kind="weights",
        name=name,
        weights="",
        size=0,
        base_model="base",
        lora=LoraConfig(rank=4),
        steps=1,
        created=datetime.now(UTC),
        expires=expires,
    )


def test_an_expired_checkpoint_is_gone_and_its_files_are_swept(tmp_path: Path):
    store = Checkpoints(tmp_path)
    path = store.save({"a": torch.ones(2)}, about(expires=datetime.now(UTC) - timedelta(seconds=1)))
    with pytest.raises(NotFound):
        store.load(path)
    store.sweep()
    assert list(tmp_path.glob("*/*/*")) == []
    store.close()


def test_a_description_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = Checkpoints(tmp_path)
    path = store.save({"a": torch.ones(2)}, about())
    (tmp_path / "s+train+0" / "weights" / "two.json").write_text("{")
    assert [one.path for one in store.all()] == [path]
    assert "cannot be read" in caplog.text
    store.close()


def test_leftovers_are_removed_unless_another_server_writes_there(tmp_path: Path):
    first = Checkpoints(tmp_path)
    path = first.save({"a": torch.ones(2)}, about())
    leftover = tmp_path / "s+train+0" / "weights" / "two.12345678.safetensors.part"
    leftover.write_bytes(b"half")
    Checkpoints(tmp_path).close()
    assert leftover.exists()
    first.close()
    second = Checkpoints(tmp_path)
    assert not leftover.exists()
    assert second.load(path)[1]["a"].tolist() == [1, 1]
    second.close()


def test_files_that_are_not_of_the_server_stay(tmp_path: Path):
    names = [
        "Qwen/model.safetensors",
        "Qwen/config.json",
        "x/weights/one.12345678.safetensors",
        "down/film.part",
    ]
    names += ["s+train+0/weights/mine.safetensors", "s+train+0/weights/mine.part", "s+train+0/mine.json.part"]
    files = [tmp_path / "models" / name for name in names] + [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    Checkpoints(tmp_path).close()
    assert [file for file in files if not file.exists()] == []


@pytest.mark.parametrize("change", [('"steps":1', '"steps":"1 of a newer version"'), ('{"', "{")])
def test_weights_stay_if_their_description_cannot_be_read(tmp_path: Path, change: tuple[str, str]):
    store = Checkpoints(tmp_path)
    path = store.save({"a": torch.ones(2)}, about())
    store.close()
    description = tmp_path / "s+train+0" / "weights" / "one.json"
    text = description.read_text()
    description.write_text(text.replace(*change))
    damaged = Checkpoints(tmp_path)
    with pytest.raises(BadInput, match="exists"):
        damaged.save({"a": torch.zeros(2)}, about())
    damaged.close()
    description.write_text(text)
    store = Checkpoints(tmp_path)
    assert store.load(path)[1]["a"].tolist() == [1, 1]
    store.close()


def test_weights_without_a_description_are_removed(tmp_path: Path):
    store = Checkpoints(tmp_path)
    store.save({"a": torch.ones(2)}, about())
    store.close()
    (tmp_path / "s+train+0" / "weights" / "one.json").unlink()
    Checkpoints(tmp_path).close()
    assert list(tmp_path.glob("*/*/*")) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".a", "a:b", "a b", "é", "a" * 129, "a\n", "a\\b"])
def test_names_that_are_no_file_names_are_refused(name: str):
    with pytest.raises(BadInput, match="letters"):
        checked_name(name)


@pytest.mark.parametrize(
    "path",
    ["", "x", "tinker://a/weights", "tinker://a/weights/b/c", "tinker://../weights/b", "tinker://a/other/b"],
)
def test_paths_that_are_no_checkpoints_are_refused(path: str):
    with pytest.raises(BadInput):
        parts_of(path)


# The key


def test_a_key_file_is_written_once_and_only_for_its_owner(tmp_path: Path):
    file = tmp_path / "key"
    key, is_made_up = find_key(None, str(file))
    assert (key.startswith("tml-"), is_made_up) == (True, False)
    assert file.stat().st_mode & 0o777 == 0o600
    assert find_key(None, str(file)) == (key, False)


def test_a_key_that_the_sdk_would_not_send_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="tml-"):
        find_key("a-long-enough-key", None)
    with pytest.raises(ValueError, match="both"):
        find_key("tml-12345678", "file")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    key, is_made_up = find_key(None, None)
    assert (key.startswith("tml-"), is_made_up) == (True, True)
    monkeypatch.setenv("TINKER_API_KEY", "tml-12345678")
    assert find_key(None, None) == ("tml-12345678", False)


# Connections


def test_a_connection_whose_thread_cannot_start_gives_its_place_back(monkeypatch: pytest.MonkeyPatch):
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(Flask(__name__), listener, most=1)
        for _ in range(2):
            with monkeypatch.context() as patch, socket.socket() as connection:
                patch.setattr(threading.Thread, "start", fail)
                with pytest.raises(RuntimeError, match="new thread"):
                    server.process_request(connection, ("127.0.0.1", 1))
        assert server._slots.acquire(blocking=False)
        server.server_close()


def test_a_connection_over_the_limit_gets_429_and_can_come_again():
    app, held, free = Flask(__name__), threading.Event(), threading.Event()
    app.add_url_rule("/", "quick", view_func=lambda: "served")
    app.add_url_rule("/slow", "slow", view_func=lambda: (held.set(), free.wait(10), "served")[-1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(app, listener, most=1)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        port = listener.getsockname()[1]
        first, second = (http.client.HTTPConnection("127.0.0.1", port, timeout=5) for _ in range(2))
        try:
            first.request("GET", "/slow")
            assert held.wait(10)
            second.request("GET", "/")
            answer = second.getresponse()
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            answer.read()
            free.set()
            assert first.getresponse().read() == b"served"
            for _ in range(500):  # until its thread has ended
                second.request("GET", "/")
                answer = second.getresponse()
                answer.read()
                if answer.status == 200:
                    break
            assert answer.status == 200
        finally:
            first.close()
            second.close()
            server.shutdown()
            thread.join()
            server.server_close()
