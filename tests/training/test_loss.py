"""Loss, advantages and reward, computed by hand and compared with TRL on the same batch.

Shapes: P questions, G completions of each, T tokens of a completion.
"""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from conductor.run.record import Record
from tests.lazy import lazy
from tests.training.tiny_models import config
from training.run_dir import RunDir
from training.team_question import TeamQuestion

torch = lazy("torch")
grpo = lazy("training.grpo")
model_for = lazy("training.models:model_for")
tokenizer_for = lazy("training.models:tokenizer_for")
TrainingRun = lazy("training.run:TrainingRun")

WORTH = {"q0": [0.0, 0.5, 1.0, 1.0], "q1": [0.5, 0.5, None, 1.0]}


def by_hand(rewards: list[float | None]) -> list[float]:
    """Compute the advantages of one group: (r - mean) / (std + 1e-4), with the sample's standard deviation. An
    unscorable completion does not count and gets 0.
    """
    require_worker = [reward for reward in rewards if reward is not None]
    return [
        0.0 if r is None else (r - mean(require_worker)) / (stdev(require_worker) + 1e-4) for r in rewards
    ]


def test_advantages_match_those_calculated_by_hand():
    # 0, .5, 1, 1: mean .625, squares .390625 + .015625 + 2 * .140625 = .6875, / 3 = .229167, root .478714
    assert by_hand([0.0, 0.5, 1.0, 1.0]) == pytest.approx([-1.30531, -0.26106, 0.78318, 0.78318], abs=1e-4)
    # .5, .5, None, 1: mean 2/3, squares 2 / 36 + 1 / 9 = 1/6, / 2 = 1/12, root .288675
    assert by_hand([0.5, 0.5, None, 1.0]) == pytest.approx([-0.57715, -0.57715, 0.0, 1.15430], abs=1e-4)


class FixedReward:
    """Reward function that returns fixed values and records the rows of its calls."""

    def __init__(self) -> None:
        self.__name__ = "told"
        self.rows: list[int] = []

    async def __call__(self, completions: Any, row: list[int], **_: Any) -> list[float | None]:
        self.rows = row
        return [WORTH[f"q{index // 4}"][index % 4] for index in range(len(completions))]


def trainer(tmp_path: Path, loss: str, reward: Any) -> tuple[Any, Any]:
    run_config = config(tmp_path, grpo={"loss": loss, "micro_batch": 4})
    run = TrainingRun(run_config, RunDir(tmp_path))
    questions: list[TeamQuestion] = run.prompts()
    texts = [each.question.text for each in questions]
    tokenizer = tokenizer_for(run_config.model, texts)
    model = model_for(run_config.model, tokenizer, seed=0)
    return grpo.trainer(
        run_config, model, tokenizer, reward, run.runner(), grpo.rows(run.runner(), questions), tmp_path
    ), model


def loss_by_hand(
    model: Any, batch: dict[str, Any], loss: str, tokens_of_all: int, micro_batches: int, longest: int
) -> "torch.Tensor":
    """Compute the loss of one micro-batch from its definition.

    With one update per batch, the ratio of new to old probability is 1. The clipped objective is then the advantage
    itself, and its gradient is that of advantage * log-probability.
    """
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attended = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=attended).logits[:, :-1].float()
    logp_B_T = (
        torch.log_softmax(logits, -1)
        .gather(-1, ids[:, 1:, None])
        .squeeze(-1)[:, -batch["completion_ids"].shape[1] :]
    )
    mask_B_T = batch["completion_mask"].float()
    ratio_B_T = torch.exp(logp_B_T - logp_B_T.detach())
    terms_B_T = -batch["advantages"][:, None] * ratio_B_T * mask_B_T
    if loss == "grpo":  # the mean of each completion, then their mean
        return (terms_B_T.sum(1) / mask_B_T.sum(1)).mean() / micro_batches
    if loss == "dr_grpo":  # divided by a constant length
        return terms_B_T.sum() / (len(ids) * longest) / micro_batches
    return terms_B_T.sum() / tokens_of_all  # dapo: all tokens of the whole batch have the same weight


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_trls_advantages_loss_and_gradients_match_those_by_hand(tmp_path: Path, loss: str):
    reward = FixedReward()
    trl, model = trainer(tmp_path, loss, reward)
    model.train()
    trl.current_gradient_accumulation_steps = 2
    batches = trl.get_train_dataloader()
    inputs = next(iter(batches))
    first = trl._prepare_inputs(
        inputs
    )  # One call generates the whole step. These are its first four completions.
    trl._step += 1
    second = trl._prepare_inputs(inputs)
    assert (
        len(set(reward.rows[:4])) == len(set(reward.rows[4:])) == 1
    )  # groups of G = 4 completions per question
    halves = [dict(first), dict(second)]
    advantages = sorted(torch.cat([half["advantages"] for half in halves]).tolist())
    assert advantages == pytest.approx(
        sorted(by_hand(WORTH["q0"]) + by_hand(WORTH["q1"])), abs=1e-5
    )  # TRL shuffles the rows of a step
    tokens = int(sum(half["completion_mask"].sum() for half in halves))
    assert tokens == int(first["num_items_in_batch"])
    for half in halves:
        model.zero_grad()
        theirs = trl.compute_loss(model, half)
        theirs.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        ours = loss_by_hand(model, half, loss, tokens, micro_batches=2, longest=24)
        ours.backward()
        assert theirs.item() == pytest.approx(ours.item(), abs=1e-6)
        for their, our in zip(
            gradients, [p.grad for p in model.parameters() if p.grad is not None], strict=True
        ):
            torch.testing.assert_close(their, our, atol=1e-6, rtol=1e-4)
    assert any(float(gradient.abs().max()) > 1e-4 for gradient in gradients)


def test_there_is_no_kl_term_and_no_reference_model(tmp_path: Path):
    trl, _ = trainer(tmp_path, "grpo", FixedReward())
    assert trl.beta == 0.0
    assert trl.ref_model is None
    assert isinstance(Record("id", "m", 0.0), Record)
