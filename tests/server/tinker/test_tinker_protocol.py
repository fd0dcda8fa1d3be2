"""The real SDK against a real server: everything that it calls."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
import requests
import tinker
import torch
from tinker import types
from tinker_server import BASE, CONTEXT, KEY, Server, params, prompt, row

TOKENS = [3, 4, 5, 6, 7]
ADAM = types.AdamParams(learning_rate=0.01)


@pytest.fixture
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(BASE, rank=4, seed=1).result()


def trained(client: tinker.TrainingClient, steps: int = 3) -> list[float]:
    """The loss before each of some steps."""
    losses: list[float] = []
    for _ in range(steps):
        forward, step = client.forward_backward([row(TOKENS)] * 2, "cross_entropy"), client.optim_step(ADAM)
        losses.append(forward.result().metrics["loss:sum"])
        assert (step.result().metrics or {})["grad_norm"] > 0
    return losses


def loss_of(client: tinker.TrainingClient) -> float:
    return client.forward([row(TOKENS)], "cross_entropy").result().metrics["loss:sum"]


# Training


def test_training_lowers_the_loss(training: tinker.TrainingClient):
    losses = trained(training)
    assert losses[0] > losses[1] > losses[2]


def test_gradients_of_two_passes_add_up(client: tinker.ServiceClient):
    once, twice = (client.create_lora_training_client(BASE, rank=4, seed=1).result() for _ in range(2))
    once.forward_backward([row(TOKENS), row(TOKENS[::-1])], "cross_entropy").result()
    twice.forward_backward([row(TOKENS)], "cross_entropy").result()
    twice.forward_backward([row(TOKENS[::-1])], "cross_entropy").result()
    norms = [(one.optim_step(ADAM).result().metrics or {})["grad_norm"] for one in (once, twice)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_forward_pass_has_no_gradient(training: tinker.TrainingClient):
    output = training.forward([row(TOKENS)], "cross_entropy").result()
    assert output.loss_fn_outputs[0]["logprobs"].shape == [4]
    assert training.optim_step(ADAM).result().metrics == {"grad_norm": 0.0, "learning_rate": 0.01}


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_losses_of_reinforcement_learning_train(training: tinker.TrainingClient, loss: str):
    rows = [row(TOKENS, logprobs=[-1.0] * 4, advantages=[0.0, 1.0, 1.0, -1.0])]
    assert "loss:sum" in training.forward_backward(rows, loss).result().metrics
    assert (training.optim_step(ADAM).result().metrics or {})["grad_norm"] > 0


def test_a_custom_loss_of_the_client_trains(training: tinker.TrainingClient):
    def loss(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return -torch.cat(logprobs).sum(), {"rows": float(len(data))}

    metrics = training.forward_backward_custom([row(TOKENS)], loss).result().metrics
    assert metrics["rows"] == 1
    assert metrics["loss:sum"] == pytest.approx(loss_of(training), rel=1e-4)
    assert (training.optim_step(ADAM).result().metrics or {})["grad_norm"] > 0


def test_targets_of_several_tokens_come_back_in_their_shape(training: tinker.TrainingClient):
    wide = types.Datum(
        model_input=prompt(TOKENS),
        loss_fn_inputs={
            "target_tokens": torch.tensor([[1, 2]] * 5),
            "weights": torch.tensor([[1.0, 0.5]] * 5),
        },
    )
    outputs = training.forward([wide, row(TOKENS), wide], "cross_entropy").result().loss_fn_outputs
    assert [one["logprobs"].shape for one in outputs] == [[5, 2], [4], [5, 2]]


def test_the_client_learns_about_its_model(training: tinker.TrainingClient):
    info = training.get_info()
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == (BASE, 4, True)
    assert Path(info.model_data.tokenizer_id or "", "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("source", "header"), [("127.0.0.2", ""), ("127.0.0.1", "Forwarded"), ("127.0.0.1", "X-Forwarded-For")]
)
def test_a_client_elsewhere_is_told_no_folder_of_this_machine(
    training: tinker.TrainingClient, server: Server, source: str, header: str
):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), source_address=(source, 0))
    headers = {"X-API-Key": KEY, **({header: "for=192.0.2.1"} if header else {})}
    connection.request("POST", "/api/v1/get_info", json.dumps({"model_id": training.model_id}), headers)
    info = json.load(connection.getresponse())
    connection.close()
    assert info["model_data"]["model_name"] == BASE
    assert info["model_data"]["tokenizer_id"] is None


def test_an_adapter_without_a_seed_differs_from_the_next(client: tinker.ServiceClient):
    first, second = (client.create_lora_training_client(BASE, rank=4).result() for _ in range(2))
    assert trained(first)[0] == pytest.approx(loss_of_base(client), rel=1e-3)
    trained(second)
    assert loss_of(first) != loss_of(second)


def loss_of_base(client: tinker.ServiceClient) -> float:
    sampler = client.create_sampling_client(base_model=BASE).result()
    logprobs = sampler.compute_logprobs(prompt(TOKENS)).result()
    return -2 * sum(one for one in logprobs if one is not None)


# Sampling


def test_samples_have_the_trained_logprobs(training: tinker.TrainingClient):
    trained(training)
    sampler = training.save_weights_and_get_sampling_client().result()
    sequence = sampler.sample(prompt([3]), 1, params(stop=[])).result().sequences[0]
    output = training.forward([row([3, *sequence.tokens])], "cross_entropy").result()
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(sequence.logprobs, abs=1e-4)


def test_a_sampler_keeps_its_weights_when_training_goes_on(training: tinker.TrainingClient):
    sampler = training.save_weights_and_get_sampling_client().result()
    before = sampler.compute_logprobs(prompt(TOKENS)).result()
    trained(training)
    assert sampler.compute_logprobs(prompt(TOKENS)).result() == before
    newer = training.save_weights_and_get_sampling_client().result()
    assert newer.compute_logprobs(prompt(TOKENS)).result() != before


def test_a_sampler_whose_checkpoint_was_saved_again_keeps_its_weights_or_says_that_they_are_gone(
    training: tinker.TrainingClient, client: tinker.ServiceClient, server: Server
):
    path = training.save_weights_for_sampler("final").result().path
    sampler = client.create_sampling_client(model_path=path).result()
    before = sampler.compute_logprobs(prompt(TOKENS)).result()
    trained(training)
    training.save_weights_for_sampler("final").result()
    assert sampler.compute_logprobs(prompt(TOKENS)).result() == before
    server.service.samplers.find(sampler._sampling_session_id).weights = None  # as newer snapshots drop them
    with pytest.raises(tinker.NotFoundError, match="saved again"):
        sampler.compute_logprobs(prompt(TOKENS)).result()
    newer = client.create_sampling_client(model_path=path).result()
    assert newer.compute_logprobs(prompt(TOKENS)).result() != before


def test_the_same_seed_gives_the_same_samples(client: tinker.ServiceClient):
    sampler = client.create_sampling_client(base_model=BASE).result()
    futures = [sampler.sample(prompt([3]), 3, params(seed=seed, stop=[])) for seed in (1, 2, 1)]
    first, second, third = ([one.tokens for one in future.result().sequences] for future in futures)
    assert first == third != second
    assert len({tuple(tokens) for tokens in first}) > 1


def test_without_a_seed_every_request_has_noise_of_its_own(client: tinker.ServiceClient):
    sampler = client.create_sampling_client(base_model=BASE).result()
    futures = [sampler.sample(prompt([3]), 1, params(seed=None, max_tokens=8, stop=[])) for _ in range(4)]
    assert len({tuple(future.result().sequences[0].tokens) for future in futures}) > 1


def test_a_stop_token_ends_a_sample_and_belongs_to_it(client: tinker.ServiceClient):
    sampler = client.create_sampling_client(base_model=BASE).result()
    free = sampler.sample(prompt([3]), 1, params(temperature=0.0, stop=[])).result().sequences[0]
    assert (len(free.tokens), free.stop_reason) == (4, "length")
    stopped = sampler.sample(prompt([3]), 1, params(temperature=0.0, stop=free.tokens[1:2])).result()
    sequence = stopped.sequences[0]
    end = free.tokens.index(free.tokens[1]) + 1
    assert (sequence.tokens, sequence.stop_reason) == (free.tokens[:end], "stop")


def test_most_probable_tokens_are_returned_on_request(client: tinker.ServiceClient):
    sampler = client.create_sampling_client(base_model=BASE).result()
    options = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3}
    greedy = params(temperature=0.0, stop=[])
    response = sampler.sample(prompt(TOKENS), 1, greedy, **options).result()
    assert [None if one is None else len(one) for one in response.topk_prompt_logprobs or []] == [
        None,
        2,
        2,
        2,
        2,
    ]
    sequence = response.sequences[0]
    best = [one[0] for one in sequence.topk_logprobs or [] if one is not None]
    assert [token for token, _ in best] == sequence.tokens
    assert [logprob for _, logprob in best] == pytest.approx(sequence.logprobs, abs=1e-4)


def test_only_the_last_prompt_tokens_are_scored_on_request(client: tinker.ServiceClient):
    sampler = client.create_sampling_client(base_model=BASE).result()
    every = sampler.compute_logprobs(prompt(TOKENS)).result()
    assert (
        sampler.compute_logprobs(prompt(TOKENS), prompt_logprobs_last_n=2).result() == [None] * 3 + every[3:]
    )


def targets_of(rows: list[list[int]], *, sparse: bool) -> types.TensorData:
    table = torch.tensor(rows)
    if not sparse:
        return types.TensorData.from_torch(table)
    found = types.TensorData.from_torch_sparse(table, pad_value=-1)
    assert found.sparse_crow_indices is not None
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_chosen_tokens_of_the_prompt_are_scored_on_request(client: tinker.ServiceClient, sparse: bool):
    sampler = client.create_sampling_client(base_model=BASE).result()
    tokens = [3 + number % 4 for number in range(12)]
    rows = [[-1, -1, -1, -1] for _ in tokens[1:]]
    rows[2][1], rows[-1][3] = tokens[3], tokens[-1]
    wanted = targets_of(rows, sparse=sparse)
    scores = sampler.sample(prompt(tokens), 1, params(), target_prompt_logprobs=wanted).result()
    assert scores.target_prompt_logprobs is not None
    found = scores.target_prompt_logprobs.to_torch()
    every = sampler.compute_logprobs(prompt(tokens)).result()
    assert (float(found[2, 1]), float(found[-1, 3])) == pytest.approx((every[3], every[-1]), abs=1e-5)
    assert int((found != 0).sum()) == 2


def test_a_sampler_handle_works_in_another_client(client: tinker.ServiceClient, server: Server):
    sampler = client.create_sampling_client(base_model=BASE).result()
    copy = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle(), api_key=KEY)
    tokens = [
        one.sample(prompt([3]), 1, params(seed=3)).result().sequences[0].tokens for one in (sampler, copy)
    ]
    assert tokens[0] == tokens[1]
    assert copy.get_base_model() == BASE
    copy.holder.close()


def test_inflight_samplers_follow_the_training(training: tinker.TrainingClient, server: Server):
    first = training.save_weights_and_get_sampling_client(kind="inflight").result()
    before = first.compute_logprobs(prompt(TOKENS)).result()
    trained(training)
    training.save_weights_and_get_sampling_client(kind="inflight").result()
    assert first.compute_logprobs(prompt(TOKENS)).result() != before


# stable_reinforce


def recorded(training: tinker.TrainingClient, server: Server) -> tuple[types.Datum, str]:
    """A row of a prompt of two tokens and four sampled ones, with its provenance."""
    sampler = training.save_weights_and_get_sampling_client().result()
    sampler._record_stability_info = True
    sequence = sampler.sample(prompt([3, 4]), 1, params(stop=[])).result().sequences[0]
    tokens = [3, 4, *sequence.tokens]
    logprobs = [0.0, *(sequence.logprobs or [])]
    return row(tokens, logprobs=logprobs, advantages=[0.0, 1.0, 1.0, 1.0, 1.0]), sequence.sequence_id


def spans(sequence_id: str, *, sampled: int = 4) -> dict[str, list[types.PromptProvenanceSpan]]:
    ours = {"sequence_id": sequence_id}
    of_prompt = types.PromptProvenanceSpan(length=2, **ours)
    return {
        "model_input": [of_prompt, types.SampledProvenanceSpan(length=3, **ours)],
        "loss_fn_inputs": [
            types.PromptProvenanceSpan(length=5 - sampled, offset=1, **ours),
            types.SampledProvenanceSpan(length=sampled, **ours),
        ],
    }


def test_stable_reinforce_trains_on_recorded_samples(training: tinker.TrainingClient, server: Server):
    datum, sequence_id = recorded(training, server)
    whole = datum.with_provenance(**spans(sequence_id))
    assert "loss:sum" in training.forward_backward([whole], "stable_reinforce").result().metrics


def test_stable_reinforce_refuses_samples_that_were_not_recorded(
    training: tinker.TrainingClient, server: Server
):
    datum, sequence_id = recorded(training, server)
    for wrong, reason in (
        (datum, "provenance"),
        (datum.with_provenance(**spans("another")), "not recorded"),
        (datum.with_provenance(**spans(sequence_id, sampled=3)), "does not repeat"),
    ):
        with pytest.raises(tinker.BadRequestError, match=reason):
            training.forward_backward([wrong], "stable_reinforce").result(timeout=5)


# Checkpoints


def test_a_saved_state_trains_on_as_if_it_had_not_been_saved(
    client: tinker.ServiceClient, training: tinker.TrainingClient
):
    trained(training)
    path = training.save_state("half").result().path
    resumed = client.create_training_client_from_state_with_optimizer(path).result()
    assert trained(resumed) == trained(training)


def test_weights_without_the_optimizer_train_on_differently(
    client: tinker.ServiceClient, training: tinker.TrainingClient
):
    trained(training)
    path = training.save_state("half").result().path
    fresh = client.create_training_client_from_state(path).result()
    assert loss_of(fresh) == loss_of(training)
    assert trained(fresh) != trained(training)


def test_named_weights_sample_in_another_session(training: tinker.TrainingClient, server: Server):
    trained(training)
    path = training.save_weights_for_sampler("end").result().path
    sampler = training.create_sampling_client(path).result()
    expected = training.save_weights_and_get_sampling_client().result()
    texts = [one.compute_logprobs(prompt(TOKENS)).result() for one in (sampler, expected)]
    assert texts[0] == texts[1]
    assert sampler.get_base_model() == BASE


def test_checkpoints_are_listed_described_and_deleted(training: tinker.TrainingClient, server: Server):
    rest, run = server.rest(), training.model_id
    path = training.save_state("one", ttl_seconds=4000, user_metadata={"a": "b"}).result().path
    training.save_weights_for_sampler("two").result()
    assert path == f"tinker://{run}/weights/one"
    newest, oldest = rest.list_checkpoints(run).result().checkpoints
    assert (newest.checkpoint_id, oldest.checkpoint_id) == ("sampler_weights/two", "weights/one")
    assert (oldest.user_metadata, newest.expires_at) == ({"a": "b"}, None)
    assert oldest.expires_at is not None
    info = rest.get_weights_info_by_tinker_path(path).result()
    assert (info.base_model, info.lora_rank) == (BASE, 4)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert rest.list_user_checkpoints(limit=1, offset=1).result().checkpoints[0].expires_at is None
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert [one.checkpoint_id for one in rest.list_checkpoints(run).result().checkpoints] == [
        newest.checkpoint_id
    ]
    with pytest.raises(tinker.NotFoundError, match="no checkpoint"):
        rest.get_weights_info_by_tinker_path(path).result(timeout=5)


def test_training_runs_and_sessions_are_listed(
    client: tinker.ServiceClient, training: tinker.TrainingClient, server: Server
):
    rest, run = server.rest(), training.model_id
    sampler = training.save_weights_and_get_sampling_client().result()
    training.save_state("one").result()
    found = rest.get_training_run(run).result()
    assert (found.base_model, found.lora_rank) == (BASE, 4)
    assert found.last_checkpoint is not None
    assert run in [one.training_run_id for one in rest.list_training_runs().result().training_runs]
    session_id = run.split(":")[0]
    session = rest.get_session(session_id).result()
    assert (session.training_run_ids, session.sampler_ids) == ([run], [sampler._sampling_session_id])
    assert session_id in rest.list_sessions().result().sessions
    client.close("success", "done").result(timeout=5)
    with pytest.warns(tinker.ExperimentalWarning):
        found_sessions = rest.search_sessions(types.SessionSearchRequest(session_id=session_id)).result()
    summary = found_sessions.sessions[0]
    assert summary.checkpoints_count == 1
    assert summary.status is not None
    assert summary.status.type == "client_finished"


# The paths themselves


def test_the_health_check_needs_no_key(server: Server):
    assert requests.get(f"{server.url}/api/v1/healthz", timeout=5).json() == {"status": "ok"}


def test_capabilities_name_the_base_models(server: Server):
    model = server.rest().get_server_capabilities().result().supported_models[0]
    assert (model.model_name, model.max_context_length, model.trainable) == (BASE, CONTEXT, True)
