import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.workers.programs.wordnet import senses
from serving.workers.programs.words import Dictionary, opposites
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

DICTIONARY = Dictionary("dictionary")
ANSWERS = {
    "What is the opposite of hot?": "The opposite of \"hot\" is \"cold\".",
    "Opposite of up?": "The opposite of \"up\" is \"down\".",
    "the opposite of black is what?": "The opposite of \"black\" is \"white\".",
    "opposite of \"old\"?": "The opposite of \"old\" is \"young\" or \"new\".",
    "opposite of right": "The opposite of \"right\" is \"left\" or \"wrong\".",
    "Give me one word that means the opposite of \"full\".": "The opposite of \"full\" is \"empty\".",
    "synonym of big": "A synonym of \"big\" is \"large\".",
    "what does ubiquitous mean?": "\"ubiquitous\" (adjective) means: being present everywhere at once.",
    "What's the plural of mouse?": "The plural of \"mouse\" is \"mice\".",
    "What is the plural of \"box\"?": "The plural of \"box\" is \"boxes\".",
    "plural of child": "The plural of \"child\" is \"children\".",
    "How do you write the plural of \"man\"?": "The plural of \"man\" is \"men\".",
    "What is the past tense of \"eat\"?": "The past tense of \"eat\" is \"ate\".",
    "past tense of be": "The past tense of \"be\" is \"was\" or \"were\".",
    "past participle of go": "The past participle of \"go\" is \"gone\".",
    "comparative of good": "The comparative of \"good\" is \"better\".",
    "superlative of big": "The superlative of \"big\" is \"biggest\".",
    "What is the first letter of the word \"dog\"?": "The first letter of \"dog\" is \"d\".",
    "what is the last letter of \"cat\"": "The last letter of \"cat\" is \"t\".",
    "What's the first letter of the alphabet? Just the letter, please.": "a",
    "Which letter comes after B in the alphabet?": "\"C\" comes after \"B\" in the alphabet.",
    "what letter comes between A and C": "\"B\" comes between \"A\" and \"C\".",
    "Write the first five letters of the alphabet": "A B C D E",
    "how many letters are in \"banana\"?": "\"banana\" has 6 letters.",
    "how many letters does the alphabet have": "The English alphabet has 26 letters.",
    "how many vowels are in banana": "\"banana\" has 3 vowels.",
    "How many times does the letter r appear in strawberry?": "The letter \"r\" appears 3 times in \"strawberry\".",
    "how many r's are in strawberry": "The letter \"r\" appears 3 times in \"strawberry\".",
    "Spell the word \"cat\" backwards.": "\"cat\" spelled backwards is \"tac\".",
    "what is \"top\" spelled backwards?": "\"top\" spelled backwards is \"pot\".",
    "How do you spell necessary": "\"necessary\" is spelled N-E-C-E-S-S-A-R-Y.",
    "Which is spelled correctly: \"freind\" or \"friend\"?": "\"friend\" is spelled correctly.",
    "is necessary spelled correctly?": "Yes, \"necessary\" is spelled correctly.",
    "Put these three words in alphabetical order: pear, apple, fig": "apple, fig, pear",
    "Write the words red, green and blue in alphabetical order": "blue, green, red",
    "which word is longer: cat or elephant?": "\"elephant\" is longer.",
    "which of these words starts with b: cat, bird, dog": "\"bird\" starts with \"b\".",
    "write the word cat in capital letters": "CAT",
    "Reply with only the word \"banana\".": "banana",
    "Write the word \"blue\" and nothing else, please.": "blue",
    "repeat the word hi three times": "hi hi hi",
    "repeat after me: good morning": "good morning",
    "Say hello.": "Hello!",
    "is racecar a palindrome": "Yes, \"racecar\" is a palindrome.",
    "are listen and silent anagrams?": "Yes, \"listen\" and \"silent\" are anagrams.",
    "Give me a synonym for \"happy\".": "A synonym of \"happy\" is \"glad\".",
    "What is the singular of children?": "The singular of \"children\" is \"child\".",
    "Is \"quickly\" an adverb?": "Yes, \"quickly\" is an adverb.",
    "Is \"run\" a verb or a noun in the sentence \"I run every day\"?": "\"run\" is a verb in this sentence.",
    "a or an before hour?": "It is \"an hour\".",
    "Which is correct: \"he go\" or \"he goes\"?": "\"he goes\" is correct.",
    "Fill in the blank: I ___ a student. (am/is/are)": "The missing word is \"am\".",
    "What is the contraction of \"do not\"?": "The short form of \"do not\" is \"don't\".",
    "Is definately spelled correctly?": "No. The correct spelling is \"definitely\".",
    "What is the correct spelling of becuase?": "The correct spelling is \"because\".",
    "What rhymes with day?": "\"say\" rhymes with \"day\".",
    "Which word rhymes with \"house\", mouse or horse?": "\"mouse\" rhymes with \"house\".",
    "Does cough rhyme with though?": "No, \"cough\" and \"though\" do not rhyme.",
    "How many syllables does banana have?": "\"banana\" has 3 syllables.",
    "Finish the proverb: An apple a day keeps the doctor ...": "The missing word is \"away\". The whole saying: \"An apple a day keeps the doctor away.\"",
    "\"Honesty is the best ...\" Which word is missing?": "The missing word is \"policy\". The whole saying: \"Honesty is the best policy.\"",
    "Hot is to cold as up is to what?": "Hot is to cold as up is to down.",
    "What is the next letter: A, C, E, ...": "The next one is G.",
    "Change the first letter of \"cat\" to \"b\".": "bat",
    "Replace \"cat\" with \"dog\" in \"the cat sleeps\".": "the dog sleeps",
    "Unscramble the letters: o d g": "The letters make \"god\".",
    "Put a question mark after the word \"hello\".": "hello?",
    "Say nothing but \"stop\".": "stop",
    "Start your answer with the word \"Sure\".": "Sure.",
    "Name a word that starts with the letter b.": "\"boy\" is such a word.",
    "How do you say \"dog\" in Spanish?": "\"dog\" is \"perro\" (el perro) in Spanish.",
    "How do you say \"a cat\" in German?": "\"a cat\" is \"eine Katze\" in German.",
    "How do you say \"orange\" in French?": "\"orange\" is \"orange\" in French.",
    "What does gracias mean in English?": "\"gracias\" means \"thank you\" in English.",
    "Translate into English: \"buenos dias\"": "\"buenos dias\" means \"good morning\" or \"good day\" in English.",
    "What does \"sale\" mean in Italian?": "\"sale\" means \"salt\" in English.",
    "How do you say thank you in Japanese?": "\"thank you\" is \"arigatō (ありがとう)\" in Japanese.",
    "Does \"gato\" mean cat or dog?": "\"gato\" means \"cat\".",
    "Count to three in German.": "eins, zwei, drei.",
    "How do you say \"Monday\" in Spanish?": "\"Monday\" is \"lunes\" in Spanish.",
    "What's the French word for \"Germany\"?": "\"Germany\" is \"Allemagne\" in French.",
    "What does \"lunes\" mean in English?": "\"lunes\" means \"Monday\" in English.",
    "anagrams of listen": "Anagrams of \"listen\" are \"enlist\" and \"silent\".",
}  # fmt: skip
REFUSED = (
    "write it backwards",
    "What is the opposite of this?",
    "opposite of banana", "opposite of run", "How many letters are in the capital of France?", "how do you spell my name", "plural of xyzzy",
    "what is the first word of the Bible", "write a poem", "say something nice", "spell it",
    "Which is the odd one out: apple, banana, car, pear?", "What rhymes with read?", "Finish the sentence: The dog is ...", "What rhymes with orange?",
    "Complete the sentence: I am ___ years old.", 'Correct the spelling: "Smyth"', "What does bank mean in German?", "Translate this letter into French.",
    "How do you say I am going to the store in Spanish?", "Translate hello.", "Replace a with b.", "Make a word.", 'Is "cold" a noun?', "Which is spelled correctly: friend or house?", "define the relationship",
    "is pneumonoultra spelled correctly", "how many letters did she write", "How many consonants are in yellow?", "Repeat yourself",
    "what letter comes after z", "what is the 20th letter of cat", "Sort my emails alphabetically", "sort my new emails and letters alphabetically", "repeat the word a 1000 times",
    "What is a word?", "synonym of xyzzy", "anagrams of xyzzy",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(DICTIONARY, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(DICTIONARY, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(DICTIONARY)


@given(st.from_regex(r"[a-z]{2,12}", fullmatch=True))
def test_reversing_a_word_twice_returns_it(word: str):
    backwards = say(DICTIONARY, f'spell "{word}" backwards. One word only.')
    assert (backwards, say(DICTIONARY, f'spell "{backwards}" backwards. One word only.')) == (
        word[::-1],
        word,
    )


@given(
    st.lists(
        st.from_regex(r"[b-z]{4,8}", fullmatch=True).filter(lambda word: word != "order"),
        min_size=2,
        max_size=6,
        unique=True,
    )
)
def test_words_are_sorted_as_in_python(words: list[str]):
    assert say(DICTIONARY, f"sort alphabetically: {', '.join(words)}") == ", ".join(sorted(words))


@given(st.from_regex(r"[a-z]{2,12}", fullmatch=True), st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
@example("aa", "u")
@example("see u soon", "u")
def test_letters_are_counted_as_in_python(word: str, letter: str):
    assert f"appears {word.count(letter)} time" in say(
        DICTIONARY, f'how many times does the letter {letter} appear in "{word}"'
    )


@pytest.mark.parametrize(
    ("word", "opposite"),
    [
        ("day", "night"),
        ("good", "bad"),
        ("man", "woman"),
        ("buy", "sell"),
        ("north", "south"),
        ("early", "late"),
        ("mother", "father"),
    ],
)
def test_the_first_opposite_is_the_most_common_one(word: str, opposite: str):
    assert opposites(word)[0] == opposite


def test_the_senses_are_complete():
    words = senses()
    assert 20_000 < len(words) < 30_000
    assert all(
        sense.definition and sense.part_of_speech in "nvar" for each in words.values() for sense in each
    )
