"""What a worker is worth for a question, and what a conductor is shown for it."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig as PeftLora
from peft import get_peft_model

from serving.settings.settings import SettingsError
from tests.training.tiny_models import POOL, config
from training.config import LoraConfig, ModelConfig
from training.models import model_for, tokenizer_for
from training.run import TrainingRun
from training.run_dir import RunDir
from training.supervised_config import WorthConfig
from training.worth import SoloAnswer, worths

ANSWER = st.builds(
    SoloAnswer,
    st.uuids().map(str),
    st.sampled_from(["sums", "words"]),
    st.booleans(),
    st.floats(0, 0.1) | st.none(),
)


@given(st.lists(st.fixed_dictionaries({"a": ANSWER, "b": ANSWER}), min_size=1), st.floats(0, 10))
def test_without_dollars_a_worth_is_a_share_between_its_familys_and_its_average(
    answers: list[dict[str, SoloAnswer]], prior: float
):
    judged = worths(answers, WorthConfig(prior=prior, usd_weight=0))
    for each, worth in zip(answers, judged, strict=True):
        for name in ("a", "b"):
            every = [other[name] for other in answers]
            family = [other.right for other in every if other.family == each[name].family]
            shares = sum(family) / len(family), sum(other.right for other in every) / len(every)
            assert min(shares) - 1e-9 <= worth[name] <= max(shares) + 1e-9


def test_one_lucky_answer_does_not_outweigh_a_family_and_a_dollar_tips_the_scale():
    answers = [
        {
            "dear": SoloAnswer(f"q{n}", "sums", right=True, usd=0.02),
            "cheap": SoloAnswer(f"q{n}", "sums", right=n == 0, usd=0.0),
        }
        for n in range(10)
    ]
    free, priced = (worths(answers, WorthConfig(prior=0, usd_weight=weight)) for weight in (0, 50))
    assert free[0] == {"dear": 1.0, "cheap": 0.1}
    assert priced[0] == pytest.approx({"dear": 0.0, "cheap": 0.1})
    again = worths([*answers, *5 * answers[:1]], WorthConfig(prior=0, usd_weight=0))
    assert again[0] == free[0], "a question that is drawn again is no new evidence"


def test_a_worker_whose_cost_is_unknown_is_not_taken_for_free():
    answers = [{"a": SoloAnswer("q", "sums", right=True, usd=None)}]
    with pytest.raises(SettingsError, match="what a costs is unknown"):
        worths(answers, WorthConfig())
    assert worths(answers, WorthConfig(usd_weight=0)) == [{"a": 1.0}]


CHEAPER = POOL.replace("card: strings", "card: strings, price: *p").replace(
    "card: arithmetic}",
    """card: arithmetic, price: &p {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}
  - {name: both, kind: python, factory: "evaluation.synthetic.skills:Skill", card: both,
     price: {input_usd_per_mtok: 10000, output_usd_per_mtok: 10000}}""",
)


def workers_in_examples(folder: Path, usd_weight: float) -> Counter[str]:
    """Whom the examples ask."""
    folder.mkdir()
    made = config(
        folder, CHEAPER, warm_start={"examples": 60, "names": True}, worth={"usd_weight": usd_weight},
        expected_reward={"examples": 20},
    )  # fmt: skip
    run = TrainingRun(made, RunDir.begin(folder / "run", made, resume=False))
    for each in run.examples("expected"):
        assert len(each.rewards) == 1
        assert len(each.rewards[0]) == 3
    return Counter(json.loads(each.plan)["worker"] for each in run.examples())


def test_examples_ask_who_is_worth_most_and_a_dollar_moves_them_to_the_cheaper_specialist(tmp_path: Path):
    """All three are never wrong about what they do; the one that does everything is the surest, and ten thousand
    times as dear.
    """
    assert set(workers_in_examples(tmp_path / "free", 0.0)) == {"both"}
    assert set(workers_in_examples(tmp_path / "priced", 1.0)) == {"adder", "speller"}


def save_adapter(folder: Path, rank: int) -> tuple[ModelConfig, Path]:
    """A model of a few weights in a folder, and an adapter of it whose weights are not those of a new one."""
    scratch = ModelConfig.model_validate(
        {"scratch": {"hidden": 32, "layers": 1, "heads": 1, "vocabulary": 400}}
    )
    tokenizer = tokenizer_for(scratch, ["a few words"])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    base = model_for(scratch, tokenizer, 0)
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    adapted = get_peft_model(
        base, PeftLora(r=rank, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.fill_(0.5)
    adapted.save_pretrained(folder / "adapter")
    return ModelConfig(path=str(folder / "base")), folder / "adapter"


def test_a_run_goes_on_from_an_adapter_and_trains_its_weights(tmp_path: Path):
    base, adapter = save_adapter(tmp_path, 16)
    found = base.model_copy(update={"lora": LoraConfig(rank=16, alpha=32, start=str(adapter))})
    model = model_for(found, tokenizer_for(found, []), 1)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert all(float(each.detach().min()) == 0.5 for name, each in trained.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("start", "told"), [("adapter", "rank 8 and alpha 32"), ("nowhere", "holds no adapter")]
)
def test_an_adapter_that_does_not_fit_is_told_by_its_field(tmp_path: Path, start: str, told: str):
    base, _ = save_adapter(tmp_path, 8)
    found = base.model_copy(update={"lora": LoraConfig(rank=16, alpha=32, start=str(tmp_path / start))})
    with pytest.raises(SettingsError, match=told):
        model_for(found, tokenizer_for(found, []), 1)
