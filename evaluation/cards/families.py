"""Readable names for the families of questions on cards. Question sets use names such as `chain_sum` or
`gsm8k`.

Families of one kind share a name, so that their questions are counted together: a card has room for only a
few names, and each should be based on many questions. A family that is not listed keeps its own name,
shortened and without special characters. That name was chosen by the author of the question set, and a
conductor reads it.
"""

KINDS: dict[str, str] = {
    # reasoning-gym's data sets, and its categories for recordings that name only those
    "sums and products": "chain_sum decimal_chain_sum products basic_arithmetic decimal_arithmetic arithmetic",
    "factors and powers": "gcd lcm prime_factorization power_function fraction_simplification count_primes",
    "bits and number bases": "bitwise_arithmetic count_bits base_conversion",
    "dates and times": "calendar_arithmetic time_intervals",
    "word problems": "gsm_symbolic leg_counting gsm8k",
    "probability": "dice coin_flip probability",
    "equations": "simple_equations polynomial_equations polynomial_multiplication complex_arithmetic algebra",
    "integrals": "simple_integration intermediate_integration",
    "geometry": "simple_geometry advanced_geometry geometry",
    "number sequences": "number_sequence list_functions",
    "number puzzles": "countdown puzzle24 cryptarithm modulo_grid survo kakurasu",
    "filtering and sorting": "number_filtering number_sorting word_sorting number_format needle_haystack",
    "letters and spelling": "letter_counting letter_jumble spell_backward palindrome_generation group_anagrams "
    "palindrome_partitioning isomorphic_strings ransom_note word_ladder",
    "sentences in order": "sentence_reordering word_sequence_reversal",
    "string rules": "ab string_insertion string_manipulation string_splitting string_synthesis binary_alternation",
    "ciphers": "caesar_cipher emoji_mystery",
    "matrices": "binary_matrix manipulate_matrix pool_matrix rotate_matrix spiral_matrix rotten_oranges",
    "cell simulations": "game_of_life game_of_life_halting",
    "graphs": "graph_color course_schedule largest_island shortest_path path_star",
    "family relations": "family_relationships aiw",
    "sudoku": "sudoku mini_sudoku futoshiki",
    "board games": "n_queens knight_swap tsumego mahjong_puzzle",
    "moving puzzles": "maze rush_hour sokoban tower_of_hanoi jugs quantum_lock boxnet",
    "cubes and shapes": "rubiks_cube color_cube_rotation figlet_font rectangle_count",
    "grid patterns": "arc_1d arc_agi rearc arc",
    "logic": "circuit_logic propositional_logic syllogism",
    "liars and riddles": "knights_knaves self_reference zebra_puzzles",
    "causes and effects": "acre induction",
    "programs": "bf codeio humaneval code",
    # other question sets
    "competition mathematics": "aime25",
    "graduate science": "gpqa",
    "Roman numerals": "numerals",
    "sorting letters and digits": "ordering",
    "reversing words": "strings",
}
"""Families of each kind of question, by the kind's name. They are separated by spaces."""
_KIND = {family: kind for kind, families in KINDS.items() for family in families.split()}
CHAIN = ">"
"""Separator between the skills in the family of a question that needs several (`evaluation.synthetic`)."""
MOST_PARTS = 3
"""Maximum number of skills that a name lists."""
MOST_CHARS, MARKS = 40, "-+.,'"
"""Maximum length of a family's own name, and the characters allowed in addition to letters and digits."""


def kind_of(family: str) -> str:
    parts = [part.strip() for part in family.split(CHAIN)[:MOST_PARTS]]
    return " then ".join(_KIND.get(part) or _own_name(part) for part in parts)


def _own_name(family: str) -> str:
    text = "".join(each if each.isalnum() or each in MARKS else " " for each in family)
    return " ".join(text.split())[:MOST_CHARS].strip() or "other questions"
