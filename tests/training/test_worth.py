"""Worth of a worker for a question, and the examples that a conductor gets for it."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.questions import Question
from serving.settings.settings import SettingsError
from tests.lazy import lazy
from tests.training.tiny_models import POOL, config
from training.config import LoraConfig, ModelConfig
from training.run_dir import RunDir
from training.supervised_config import WorthConfig
from training.worth import AnsweredQuestion, SoloAnswer, Worths

torch = lazy("torch")
PeftLora = lazy("peft:LoraConfig")
get_peft_model = lazy("peft:get_peft_model")
model_for = lazy("training.models:model_for")
tokenizer_for = lazy("training.models:tokenizer_for")
TrainingRun = lazy("training.run:TrainingRun")

NAMES = ("a", "b")


def question(number: int, text: str = "how many") -> Question:
    return Question(f"q/{number}", text, "1", "exact", "sums", "sums")


def answer_all(number: int, family: str, right: Sequence[bool], text: str = "how many") -> AnsweredQuestion:
    answers = {name: SoloAnswer(each, 0.0) for name, each in zip(NAMES, right, strict=True)}
    return AnsweredQuestion(question(number, text), family, answers)


@given(
    st.lists(st.tuples(st.sampled_from(["sums", "words"]), st.booleans(), st.booleans()), min_size=1),
    st.floats(0.01, 100),
)
def test_without_costs_a_worth_lies_between_family_and_average_share(
    rows: list[tuple[str, bool, bool]], ridge: float
):
    every = [answer_all(number, family, right) for number, (family, *right) in enumerate(rows)]
    worths = Worths(every, WorthConfig(ridge=ridge, usd_weight=0))
    for each in every:
        for name, worth in worths.judge(each.question, each.family).items():
            family = [other.answers[name].right for other in every if other.family == each.family]
            shares = mean(family), mean(other.answers[name].right for other in every)
            assert min(shares) - 1e-6 <= worth <= max(shares) + 1e-6


def test_costs_may_outweigh_accuracy_but_one_answer_does_not_outweigh_a_family():
    every = [
        AnsweredQuestion(
            question(n), "sums", {"dear": SoloAnswer(True, 0.02), "cheap": SoloAnswer(n == 0, 0.0)}
        )
        for n in range(10)
    ]
    free, priced = (Worths(every, WorthConfig(usd_weight=weight)) for weight in (0, 50))
    assert free.judge(question(0), "sums") == pytest.approx({"dear": 1.0, "cheap": 0.1})
    assert priced.judge(question(0), "sums") == pytest.approx({"dear": 0.0, "cheap": 0.1})
    again = Worths([*every, *5 * every[:1]], WorthConfig(usd_weight=0))
    reason = "a question that is drawn again is no new evidence"
    assert again.judge(question(0), "sums") == free.judge(question(0), "sums"), reason


def test_a_worker_right_only_on_short_questions_is_worth_less_on_long_ones():
    every = [answer_all(n, "sums", (True, n % 2 == 0), "how many? " * (1 + 9 * (n % 2))) for n in range(20)]
    worths = Worths(every, WorthConfig(usd_weight=0))
    short, long = worths.judge(every[0].question, "sums"), worths.judge(every[1].question, "sums")
    assert short["a"] == pytest.approx(long["a"])
    assert short["b"] > 0.8 > 0.2 > long["b"]
    assert set(worths.judge(question(99), "a family that nobody has seen")) == set(NAMES)


def test_a_worker_with_unknown_cost_is_not_treated_as_free():
    every = [AnsweredQuestion(question(0), "sums", {"a": SoloAnswer(True, None)})]
    with pytest.raises(SettingsError, match="needs the cost of a, which is unknown"):
        Worths(every, WorthConfig())
    free = Worths(every, WorthConfig(usd_weight=0))
    assert free.judge(question(0), "sums") == pytest.approx({"a": 1.0})


CHEAPER = POOL.replace("card: strings", "card: strings, price: *p").replace(
    "card: arithmetic}",
    """card: arithmetic, price: &p {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}
  - {name: both, kind: python, factory: "evaluation.synthetic.skills:Skill", card: both,
     price: {input_usd_per_mtok: 10000, output_usd_per_mtok: 10000}}""",
)


def workers_in_examples(folder: Path, usd_weight: float) -> Counter[str]:
    folder.mkdir()
    run_config = config(
        folder, CHEAPER, warm_start={"examples": 60, "names": True}, worth={"usd_weight": usd_weight},
        expected_reward={"examples": 20},
    )  # fmt: skip
    run = TrainingRun(run_config, RunDir.begin(folder / "run", run_config, resume=False))
    for each in run.examples("expected"):
        assert len(each.rewards) == 1
        assert len(each.rewards[0]) == 3
    return Counter(json.loads(each.plan)["worker"] for each in run.examples())


def test_examples_use_the_best_worker_or_the_cheaper_one_if_costs_count(tmp_path: Path):
    """All three are always right at their kinds. The worker for both is the surest, and 10,000 times as expensive."""
    free = workers_in_examples(tmp_path / "free", 0.0)
    assert free["both"] > 0.8 * free.total()
    assert set(workers_in_examples(tmp_path / "priced", 1.0)) == {"adder", "speller"}


def save_adapter(folder: Path, rank: int) -> tuple[ModelConfig, Path]:
    """Save a small model, and an adapter whose weights differ from initial ones."""
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


def test_a_run_continues_from_an_adapter_and_trains_its_weights(tmp_path: Path):
    base, adapter = save_adapter(tmp_path, 16)
    model_config = base.model_copy(update={"lora": LoraConfig(rank=16, alpha=32, start=str(adapter))})
    model = model_for(model_config, tokenizer_for(model_config, []), 1)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert all(float(each.detach().min()) == 0.5 for name, each in trained.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("start", "message"), [("adapter", "rank 8 and alpha 32"), ("nowhere", "has no adapter")]
)
def test_an_incompatible_adapter_is_an_error_with_its_field(tmp_path: Path, start: str, message: str):
    base, _ = save_adapter(tmp_path, 8)
    model_config = base.model_copy(
        update={"lora": LoraConfig(rank=16, alpha=32, start=str(tmp_path / start))}
    )
    with pytest.raises(SettingsError, match=message):
        model_for(model_config, tokenizer_for(model_config, []), 1)
