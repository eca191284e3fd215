"""Does a conversation that stays with its worker get fewer right answers? Replay a recorded pool as conversations.

Each conversation has 12 questions of the pool's test side. The category of a question differs from that of the one
before with a given probability. A learned router chooses a worker for each question, and `may_switch` of
`conductor.run.follow_up` decides whether the conversation may move there. A second router knows the right answers.

    python -m evaluation.stickiness recorded.jsonl.gz

Answers are recorded, so a worker answers as it did without the earlier turns. Tokens are estimated from characters, and
prices are declared in `stickiness_prices.yaml`. Compare the costs only with each other.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import yaml
from typer import Argument, Option

from conductor.model.characters import BYTES_PER_TOKEN
from conductor.model.usage import MILLION, Price
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan, Step
from conductor.run.follow_up import Agreement, FollowUp, Pool, cost_usd, may_switch
from evaluation import EvaluationError
from evaluation.json_lines import read_json_lines
from evaluation.recordings import RIGHT, key_of, side_of
from evaluation.routing import logistic
from evaluation.routing.embeddings import Embedder
from evaluation.workers.replay import Replay
from podium.command_line.options import parse_count, parse_seed
from podium.command_line.plots import BLUE, GREEN, GREY, ORANGE, save_plot
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import console, table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STICKINESS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, float("inf"))
CHANGES = (0.0, 0.1, 0.3, 1.0)
"""Probabilities that the category of the next question differs."""
TURNS = 12
RESAMPLES = 2_000
PRICES = Path(__file__).with_name("stickiness_prices.yaml")


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a pool and the recorded answers of its workers. Q questions, W workers.

    Args:
        texts: the Q questions.
        categories: their categories.
        tokens_Q: tokens of each question.
        right_Q_W: whether each worker was right.
        shown_Q_W: tokens of each visible answer.
    """

    texts: Sequence[str]
    categories: Sequence[str]
    tokens_Q: Ints
    right_Q_W: npt.NDArray[np.bool_]
    shown_Q_W: Ints


def read_side(path: Path, side: str, workers: Sequence[str]) -> Questions:
    """Return the questions of one side of a recorded pool that all workers have answered.

    Raises:
        EvaluationError: the pool cannot be read, or has no such questions.
    """
    rows = [
        row
        for _, row in read_json_lines(path)
        if side_of(key_of(row["question"])) == side and all(worker in row["models"] for worker in workers)
    ]
    if not rows:
        raise EvaluationError(f"{path} has no questions of the side {side} that all workers have answered.")
    answers = [[row["models"][worker] for worker in workers] for row in rows]
    return Questions(
        [row["question"] for row in rows],
        [row["category"] for row in rows],
        np.array([-(-len(row["question"]) // BYTES_PER_TOKEN) for row in rows]),
        np.array([[each["s"] >= RIGHT for each in row] for row in answers]),
        np.array([[-(-each.get("n", 0) // BYTES_PER_TOKEN) for each in row] for row in answers]),
    )


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations of recorded questions, and what their turns cost.

    Args:
        questions: the questions.
        pool: workers by name, with their prices.
        reasoning_W: hidden output tokens of each worker's answers.
        context_tokens: tokens before the first question, such as a document or tools.
    """

    questions: Questions
    pool: Pool
    reasoning_W: Ints
    context_tokens: int

    def draw(self, count: int, change: float, seed: int) -> list[Ints]:
        """Return the questions of `count` conversations."""
        rng = np.random.default_rng(seed)
        categories = np.array(self.questions.categories)
        names = np.unique(categories)
        drawn: list[Ints] = []
        for _ in range(count):
            name, questions = rng.choice(categories), list[int]()
            for turn in range(TURNS):
                if turn and len(names) > 1 and rng.random() < change:
                    name = rng.choice(categories[categories != name])
                questions.append(int(rng.choice(np.flatnonzero(categories == name))))
            drawn.append(np.array(questions))
        return drawn

    def replay(self, conversation: Ints, chosen_Q: Ints, stickiness: float) -> tuple[int, Decimal, int]:
        """Return the number of right answers, the cost, and the number of switches of a conversation."""
        names, questions = list(self.pool), self.questions
        history, last, spent, rights, switches = self.context_tokens, "", Decimal(0), 0, 0
        cached, outputs = dict[str, int](), list[int]()
        for turn, question in enumerate(conversation):
            prompt_tokens = history + int(questions.tokens_Q[question])
            mean = round(sum(outputs) / len(outputs)) if outputs else 0
            facts = FollowUp(
                last, prompt_tokens, cached, mean, turn, False, stickiness, None, "", Agreement()
            )
            name = names[chosen_Q[question]]
            if last and name != last:
                if may_switch(Plan((Step(name, ""),)), self.pool, facts):
                    switches += 1
                else:
                    name = last
            worker = names.index(name)
            shown = int(questions.shown_Q_W[question, worker])
            outputs.append(shown + int(self.reasoning_W[worker]))
            spent += cost_usd(name, self.pool, replace(facts, answer_tokens=outputs[-1])) or 0
            rights += bool(questions.right_Q_W[question, worker])
            history, last = prompt_tokens + shown, name
            price = self.pool[name].price
            if price is not None and price.cached < price.input_usd_per_mtok:
                cached[name] = prompt_tokens
        return rights, spent, switches


def interval(differences_C: Floats, seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over conversations."""
    rng = np.random.default_rng(seed)
    means = [rng.choice(differences_C, len(differences_C)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def rows_of(conversations: Conversations, chosen_Q: Ints, count: int, seed: int) -> list[dict[str, Any]]:
    """Return a row for each probability of a change and each stickiness.

    `low` and `high` are the interval of the difference to stickiness 0. At 0, they are the interval of the right answers
    themselves, minus their mean.
    """
    rows: list[dict[str, Any]] = []
    for change in CHANGES:
        drawn = conversations.draw(count, change, seed)
        base_C = np.zeros(count)
        for stickiness in STICKINESS:
            results = [conversations.replay(each, chosen_Q, stickiness) for each in drawn]
            rights_C = np.array([rights for rights, _, _ in results]) / TURNS
            base_C = rights_C if stickiness == 0 else base_C
            low, high = interval(rights_C - (base_C if stickiness else base_C.mean()), seed)
            rows.append(
                {
                    "context": conversations.context_tokens,
                    "change": change,
                    "stickiness": stickiness,
                    "right": float(rights_C.mean()),
                    "difference": float((rights_C - base_C).mean()),
                    "low": low,
                    "high": high,
                    "usd": float(sum(usd for _, usd, _ in results) / count),
                    "switches": sum(switches for _, _, switches in results) / count / (TURNS - 1),
                }
            )
    return rows


def largest_harmless(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest stickiness up to which each row loses fewer right answers than the interval at 0 spans."""
    spans = {(row["context"], row["change"]): row["low"] for row in rows if row["stickiness"] == 0}
    harmful = [row["stickiness"] for row in rows if row["difference"] < spans[row["context"], row["change"]]]
    return max(each for each in STICKINESS if not harmful or each < min(harmful))


def read_prices() -> tuple[dict[str, Price], Ints]:
    """Return the declared price of each worker, and the hidden output tokens of its answers."""
    entries = yaml.safe_load(PRICES.read_text(encoding="utf-8"))
    prices = {
        worker: Price(
            Decimal(str(each["input"])),
            Decimal(str(each["output"])),
            Decimal(str(each["cached"])) if "cached" in each else None,
            Decimal(str(each["write"])) if "write" in each else None,
        )
        for worker, each in entries.items()
    }
    return prices, np.array([int(each.get("reasoning_tokens", 0)) for each in entries.values()])


def mean_usd(questions: Questions, prices: Mapping[str, Price], reasoning_W: Ints) -> Floats:
    """Return the mean cost of each worker's answers, without earlier turns."""
    input_W = [float(price.input_usd_per_mtok) for price in prices.values()]
    output_W = [float(price.output_usd_per_mtok) for price in prices.values()]
    n_output_W = questions.shown_Q_W.mean(axis=0) + reasoning_W
    usd_W = questions.tokens_Q.mean() * np.array(input_W) + n_output_W * np.array(output_W)
    return usd_W / float(MILLION)


def choices(train: Questions, test: Questions, usd_W: Floats, embed: Any, seed: int) -> dict[str, Ints]:
    """Return the worker that each router chooses for each question of `test`."""
    x = embed(train.texts)
    unseen = logistic.out_of_fold(x, train.right_Q_W, seed)
    best = int(np.argmax(train.right_Q_W.mean(axis=0)))
    factor = logistic.factor_for(unseen, usd_W, float(usd_W[best]) * (1 + 1e-9))
    learned = logistic.fit(x, train.right_Q_W).chances(embed(test.texts))
    cheapest_right = test.right_Q_W - 1e-6 * usd_W / usd_W.max()
    return {
        "router": logistic.choose(learned, usd_W, factor),
        "oracle": logistic.choose(cheapest_right, usd_W, 0.0),
    }


def plot(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot the lost right answers over the stickiness, for each probability of a change."""
    labels = [f"{each:g}" for each in STICKINESS]
    for change, colour in zip(CHANGES, (GREY, GREEN, BLUE, ORANGE), strict=True):
        some = [row for row in rows if row["change"] == change]
        means = [100 * row["difference"] for row in some]
        errors = [
            [100 * (row["difference"] - row["low"]) for row in some],
            [100 * (row["high"] - row["difference"]) for row in some],
        ]
        axes.errorbar(labels, means, yerr=errors, color=colour, label=f"change {change:g}", elinewidth=0.8)
    axes.legend()
    axes.set(xlabel="stickiness", ylabel="right answers minus those at 0, points")


main = Program("python -m evaluation.stickiness")


@main.command()
def run(
    pool: Annotated[Path, Argument(help="recorded pool (docs/evaluation.md)")],
    conversations: Annotated[int, Option(parser=parse_count, help="number of conversations")] = 400,
    context_tokens: Annotated[
        list[int] | None,
        Option(metavar="TOKENS...", help="tokens before the first question", show_default="0 20000"),
    ] = None,
    seed: Annotated[int, Option(parser=parse_seed)] = 0,
    out: Annotated[Path, Option(help="folder for vectors and plots")] = Path("build/stickiness"),
) -> int:
    """Print right answers and cost per conversation for each stickiness, and the largest one that loses none.

    Raises:
        CommandError: the pool cannot be read.
    """
    out.mkdir(parents=True, exist_ok=True)
    screen = console()
    try:
        by_worker, reasoning_W = read_prices()
        train, test = (read_side(pool, side, list(by_worker)) for side in ("train", "test"))
        members = {
            name: PoolMember(name, Replay(name, price, str(pool), name), price=price)
            for name, price in by_worker.items()
        }
        usd_W = mean_usd(train, by_worker, reasoning_W)
        embedder = Embedder(out / "vectors.npz", screen.print)
        by_router = choices(train, test, usd_W, embedder.embed, seed)
    except (EvaluationError, ValueError, OSError) as exc:
        raise CommandError(str(exc)) from exc
    for router, chosen_Q in by_router.items():
        rows: list[dict[str, Any]] = []
        for context in context_tokens or [0, 20_000]:
            replays = Conversations(test, members, reasoning_W, context)
            some = rows_of(replays, chosen_Q, conversations, seed)
            save_plot(out / f"{router}-{context}.svg", plot, some, title=f"{router}, {context} tokens before")
            rows += some
        screen.print(_table(router, rows))
        screen.print(f"{router}: the largest stickiness whose loss is within the interval at 0 is {largest_harmless(rows):g}.\n")  # fmt: skip
    return 0


def _table(router: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    new_table = table(
        "tokens before",
        "change",
        "stickiness",
        right=("right", "minus 0", "95 %", "US$ per conversation", "turns that switch"),
        title=router,
    )
    for row in rows:
        new_table.add_row(
            f"{row['context']:,}",
            f"{row['change']:g}",
            f"{row['stickiness']:g}",
            f"{row['right']:.3f}",
            f"{row['difference']:+.3f}",
            f"{row['low']:+.3f} to {row['high']:+.3f}",
            f"{row['usd']:.4f}",
            f"{row['switches']:.2f}",
        )
    return new_table


if __name__ == "__main__":
    sys.exit(main())
