"""Packing of one team's examples into a row does not change the loss and its gradients."""

from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import lazy
from tests.training.tiny_models import POOL, config
from training.curriculum.questions import lesson, request_questions
from training.examples import Example, format_plan
from training.plan_runner import PlanRunner
from training.run_dir import RunDir

torch = lazy("torch")
attention = lazy("training.branch_attention")
model_for = lazy("training.models:model_for")
tokenizer_for = lazy("training.models:tokenizer_for")
packing = lazy("training.packing")
TrainingRun = lazy("training.run:TrainingRun")
rows = lazy("training.supervised:rows")


def label(
    token: int, weight: float, tokens: list[int] | None = None, worths: list[float] | None = None
) -> list[int]:
    row = [packing.IGNORED] * packing.WIDTH
    row[packing.TARGET], row[packing.WEIGHT] = token, round(packing.THOUSAND * weight)
    for number, (choice, worth) in enumerate(zip(tokens or [], worths or [], strict=True)):
        row[packing.CHOICES + number] = choice
        row[packing.CHOICES + packing.MOST_WORKERS + number] = round(packing.THOUSAND * worth)
    return row


def loss_of(probabilities: list[list[float]], labels: list[list[int]]) -> "tuple[float, torch.Tensor]":
    logits = torch.tensor([probabilities]).log().requires_grad_()
    loss = packing.plan_loss(SimpleNamespace(logits=logits), torch.tensor([labels]))
    loss.backward()
    assert logits.grad is not None
    return loss.item(), logits.grad[0]


def test_the_loss_is_the_weighted_mean():
    loss, _ = loss_of(
        [[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]],
        [label(1, 0.3), label(1, 1), label(packing.IGNORED, 0)],
    )
    by_hand = -(0.3 * torch.tensor(0.25).log() + 1.0 * torch.tensor(0.8).log()) / 1.3
    assert loss == pytest.approx(by_hand.item(), abs=1e-6)


def test_the_loss_of_a_choice_is_its_expected_regret():
    # Tokens 2, 0 and 1 are the workers with worths 1, 0.5 and 0. Token 3 is not a worker's number.
    loss, gradient = loss_of([[0.2, 0.1, 0.3, 0.4]], [label(2, 1, [2, 0, 1], [1.0, 0.5, 0.0])])
    chosen = torch.tensor([0.5, 1 / 3, 1 / 6])  # normalised over the team
    worth = torch.tensor([1.0, 0.5, 0.0])
    expected = float((chosen * worth).sum())
    assert loss == pytest.approx(1 - expected, abs=1e-6)
    by_hand = -chosen * (worth - expected)
    assert gradient[0, [2, 0, 1]].tolist() == pytest.approx(by_hand.tolist(), abs=1e-6)
    assert gradient[0, 3].item() == 0


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=10), st.data())
def test_the_gradient_is_that_of_the_exact_expectation(scores: list[float], data: st.DataObject):
    worths = data.draw(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=len(scores), max_size=len(scores))
    )
    logits = torch.tensor([[scores]]).requires_grad_()
    labels = torch.tensor([[label(0, 1, list(range(len(scores))), worths)]])
    packing.plan_loss(SimpleNamespace(logits=logits), labels).backward()
    other = torch.tensor(scores).requires_grad_()
    (-(other.softmax(0) * torch.tensor(worths)).sum()).backward()
    assert logits.grad is not None
    assert other.grad is not None
    assert torch.allclose(logits.grad[0, 0], other.grad, atol=1e-6)


@dataclass(frozen=True)
class Learner:
    """Tokenizer, plan runner and a small untrained model, shared by all examples."""

    runner: PlanRunner
    tokenizer: Any
    model: Any


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    path = tmp_path_factory.mktemp("packed")
    run = TrainingRun(config(path), RunDir(path))
    runner = run.runner()
    texts = [turn["content"] for each in request_questions(3, 50) for turn in runner.prompt(each)]
    tokenizer = tokenizer_for(run.config.model, texts)
    return Learner(runner, tokenizer, model_for(run.config.model, tokenizer, 0).double())


@given(st.integers(0, 10_000), st.booleans())
def test_packed_requests_have_the_same_loss_and_gradients_as_separate_rows(
    learner: Learner, seed: int, with_rewards: bool
):
    examples = [
        Example(
            learner.runner.prompt(each), format_plan(steps, "steps", ("subtask", "worker", "access")), worths
        )
        for each in request_questions(seed, 4, "train", per_team=4)
        for steps, worths in [lesson(each)]
    ]
    assert len(rows(examples, 4)) == 1
    assert len(rows(examples, 3)) == 2
    tokenizer, model = learner.tokenizer, learner.model
    collate = packing.Collator(tokenizer, with_rewards=with_rewards)
    dicts = [asdict(each) for each in examples]
    together, apart = collate([{"examples": dicts}]), collate([{"examples": [each]} for each in dicts])
    assert together["input_ids"].numel() < apart["input_ids"].numel()
    losses, gradients = [], []
    for batch in (together, apart):
        labels = batch.pop("labels")
        model.zero_grad()
        before = model.config._attn_implementation
        with attention.attend_by_branches(model):
            loss = packing.plan_loss(model(**batch), labels)
        assert model.config._attn_implementation == before
        loss.backward()
        losses.append(loss.item())
        gradients.append(
            torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


def test_a_token_attends_to_the_shared_prefix_and_its_own_example():
    branches = torch.tensor([[attention.PADDING, attention.SHARED, attention.SHARED, 0, 0, 1]])
    sees = [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 1, 0, 0, 1],
    ]
    assert attention.visible(branches).int().tolist() == [[sees]]


def test_every_worker_of_a_plan_is_a_choice_among_team_numbers(tmp_path: Path):
    run = TrainingRun(config(tmp_path), RunDir(tmp_path))
    question = request_questions(3, 1)[0]
    steps, worths = lesson(question)
    example = Example(
        run.runner().prompt(question), format_plan(steps, "steps", ("subtask", "worker", "access")), worths
    )
    tokenizer = tokenizer_for(run.config.model, [turn["content"] for turn in example.prompt] + [example.plan])
    labels = packing.Collator(tokenizer, with_rewards=True)([{"examples": [asdict(example)]}])["labels"][0]
    choices = labels[labels[:, packing.CHOICES] != packing.IGNORED]
    assert len(choices) == len(steps)
    for row, step, worth in zip(choices, steps, worths, strict=True):
        tokens = row[packing.CHOICES : packing.CHOICES + len(worth)].tolist()
        assert tokenizer.decode([tokens[int(str(step["worker"]))]]) == str(step["worker"])
        assert len(set(tokens)) == len(question.team.mates)


def test_only_worker_tokens_count_if_the_plans_weight_is_zero(tmp_path: Path):
    run = TrainingRun(config(tmp_path), RunDir(tmp_path))
    question = next(each for each in request_questions(3, 50) if len(each.request.parts) == 2)
    steps, worths = lesson(question)
    plan = format_plan(steps, "steps", ("needs", "worker", "subtask", "access"))
    example = Example(run.runner().prompt(question), plan, worths)
    tokenizer = tokenizer_for(run.config.model, [turn["content"] for turn in example.prompt] + [plan])
    labels = packing.Collator(tokenizer, plan_weight=0, worker_weight=2)([{"examples": [asdict(example)]}])[
        "labels"
    ][0]
    assert labels[:, packing.WEIGHT].tolist() == [2 * packing.THOUSAND] * 2
    assert [tokenizer.decode([token]) for token in labels[:, packing.TARGET]] == [
        str(step["worker"]) for step in steps
    ]


def test_a_pool_without_drawn_teams_has_one_example_per_row(tmp_path: Path):
    run = TrainingRun(config(tmp_path, POOL), RunDir(tmp_path))
    assert {len(row) for row in rows(run.examples()[:50], run.config.questions.requests_per_team)} == {1}


def test_tokens_of_a_learned_need_count_like_the_worker(tmp_path: Path):
    run = TrainingRun(config(tmp_path), RunDir.begin(tmp_path / "run", config(tmp_path), resume=False))
    tokenizer = tokenizer_for(run.config.model, [each.request.text for each in request_questions(3, 50)])
    prompt = [{"role": "user", "content": "one of the team"}]

    def tokens_that_count(worker: str, *, names_need: bool) -> str:
        example = Example(
            prompt, f'{{"needs": "stories and tales", "worker": {worker}', names_need=names_need
        )
        labels = packing.Collator(tokenizer, plan_weight=0)([{"examples": [asdict(example)]}])["labels"][0]
        return tokenizer.decode(labels[labels[:, packing.WEIGHT] > 0, packing.TARGET])

    assert tokens_that_count("3", names_need=False).strip() == "3"
    assert tokens_that_count("3", names_need=True).replace(" ", "") == 'storiesandtales",3', (
        "a token may reach over the comma"
    )
    assert tokens_that_count("", names_need=True).rstrip() == 'stories and tales",', "nobody can do it"


def test_each_need_of_a_plan_with_several_steps_counts(tmp_path: Path):
    run = TrainingRun(config(tmp_path), RunDir.begin(tmp_path / "run", config(tmp_path), resume=False))
    tokenizer = tokenizer_for(run.config.model, [each.request.text for each in request_questions(3, 50)])
    steps = [
        '{"needs": "tales", "worker": 3, "subtask": "tell one", "access": []}',
        '{"needs": "maps", "worker": 1',
    ]
    example = Example([{"role": "user", "content": "one of the team"}], "\n".join(steps), names_need=True)
    labels = packing.Collator(tokenizer, plan_weight=0)([{"examples": [asdict(example)]}])["labels"][0]
    counted = tokenizer.decode(labels[labels[:, packing.WEIGHT] > 0, packing.TARGET]).replace(" ", "")
    assert counted == 'tales",3maps",1'
