"""Questions of reasoning-gym, generated from a seed: `reasoning_gym:chain_sum,caesar_cipher`.

Without names, all data sets of `WHITELIST` are used. reasoning-gym's scorers were made for training: most
give credit to any text that contains the answer, some of them full credit, and some execute the answer as
Python. The whitelist therefore has only data sets for which, in version 0.1.25:

* the reference answer scores 1;
* the same answer among other words scores below 0.99, and so does an empty or unrelated answer;
* the scorer does not evaluate its input.

The grader takes the text between `<answer>` tags and requires 0.99 (`evaluation.graders`).
"""
# The types of reasoning-gym are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from decimal import localcontext

from evaluation import HOW_TO_INSTALL, EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.questions import Question
from evaluation.spec import Spec

SEEDS_APART = 1_000_003
"""Factor of seeds. reasoning-gym makes question i of seed s from s + i, so close seeds would share questions."""
_TRUSTED = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic color_cube_rotation
complex_arithmetic count_bits count_primes course_schedule cryptarithm decimal_arithmetic
decimal_chain_sum dice emoji_mystery family_relationships figlet_font futoshiki game_of_life gcd
group_anagrams isomorphic_strings jugs knight_swap largest_island lcm leg_counting letter_counting
list_functions mahjong_puzzle maze mini_sudoku needle_haystack number_filtering number_format
number_sequence number_sorting palindrome_generation palindrome_partitioning path_star
polynomial_equations pool_matrix power_function products ransom_note rearc rectangle_count rotten_oranges
self_reference sentence_reordering shortest_path simple_equations simple_geometry string_manipulation
string_splitting string_synthesis sudoku syllogism tsumego word_ladder word_sequence_reversal word_sorting
zebra_puzzles
"""
WHITELIST = tuple(_TRUSTED.split())
"""Data sets whose scorer is reliable. The tests check each of them."""


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    """Return `count` questions, distributed evenly over the data sets."""
    from evaluation.sources import DEFAULT_COUNT

    spec.allow_only()
    names = [name.strip() for name in spec.detail.split(",") if name.strip()] or list(WHITELIST)
    for name in names:
        if name not in WHITELIST:
            raise EvaluationError(
                f"reasoning_gym:{name} does not exist, or its scorer is not reliable. "
                f"Choose from: {', '.join(WHITELIST)}."
            )
    total = count or DEFAULT_COUNT
    sizes = [total // len(names) + (index < total % len(names)) for index in range(len(names))]
    return [q for name, size in zip(names, sizes, strict=True) if size for q in _generate(name, size, seed)]


def _generate(name: str, size: int, seed: int) -> list[Question]:
    try:
        import reasoning_gym
    except ImportError as exc:
        raise EvaluationError(
            f"Questions of reasoning_gym need the package reasoning-gym. {HOW_TO_INSTALL}"
        ) from exc
    with localcontext():  # decimal_arithmetic lowers the thread's precision, and costs are decimals too
        entries = list(reasoning_gym.create_dataset(name, size=size, seed=seed * SEEDS_APART))
    return [
        Question(
            id=f"reasoning_gym/{name}/{seed}/{index}",
            text=f"{entry['question']}\n\n{ANSWER_FORM}",
            expected=str(entry["answer"]),
            grader="reasoning_gym",
            source="reasoning_gym",
            family=name,
            facts={"entry": dict(entry)},
        )
        for index, entry in enumerate(entries)
    ]
