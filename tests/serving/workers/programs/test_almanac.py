from serving.workers.programs.almanac import Almanac
from serving.workers.programs.facts import almanac
from serving.workers.programs.names import FILE as NAMES
from serving.workers.programs.names import write
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails

ALMANAC = Almanac("almanac")
ANSWERS = {
    "What color is grass?": "Grass is green.",
    "What color is a ripe banana?": "A banana is yellow.",
    "Which colour of a traffic light means stop?": "A red traffic light means stop.",
    "Which colour do you get when you mix blue and yellow?": "Mixed blue and yellow give green.",
    "How many legs does a dog have?": "A dog has 4 legs.",
    "How many legs do 3 dogs have?": "A dog has 4 legs, so 3 dogs have 12.",
    "How many strings does a violin have?": "A violin has 4 strings.",
    "What's a young cow called?": "A young cow is called a calf.",
    "What do you call a group of wolves?": "A group of wolves is called a pack.",
    "What do pandas eat?": "Pandas eat bamboo.",
    "Which animal gives us wool?": "Sheep give us wool.",
    "What is the fastest land animal?": "The cheetah is the fastest land animal.",
    "Which organ pumps blood through the body?": "The heart pumps blood through the body.",
    "What do you smell with?": "We smell with our nose.",
    "Which river flows through London?": "The Thames flows through London.",
    "What is the highest mountain in the world?": "Mount Everest is the highest mountain in the world.",
    "In which city is the Eiffel Tower?": "The Eiffel Tower is in Paris, France.",
    "Which country is Kyoto in?": "Kyoto is in Japan.",
    "Is Berlin in Spain?": "No. Berlin is in Germany.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who is the author of Oliver Twist?": "Charles Dickens wrote Oliver Twist.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "Who composed the Four Seasons?": "Antonio Vivaldi composed the Four Seasons.",
    "Who invented the telephone?": "Alexander Graham Bell invented the telephone.",
    "Which artist cut off part of his ear?": "Vincent van Gogh cut off a part of his ear.",
    "Who was the first person on the Moon?": "Neil Armstrong was the first person on the Moon, in 1969.",
    "Who puts out fires?": "A firefighter puts out fires.",
    "What do you call someone who bakes bread?": "A baker bakes bread.",
    "When did World War II end?": "The Second World War ended in 1945.",
    "Which planet is closest to the Sun?": "Mercury is the planet closest to the Sun.",
    "Is Jupiter the smallest planet?": "No. Mercury is the smallest planet of the solar system.",
    "Does the Earth go around the Sun? Yes or no?": "Yes",
    "Does the Sun go around the Earth?": "No. The Earth goes around the Sun.",
    "What goes around the Earth?": "The Moon goes around the Earth.",
    "What does the Earth go around?": "The Earth goes around the Sun.",
    "At how many degrees Celsius does water boil at sea level?": "Water boils at 100 degrees Celsius at sea level.",
    "What is the chemical symbol for gold?": "The chemical symbol of gold is Au.",
    "Which element has the symbol Fe?": "Fe is the chemical symbol of iron.",
    "What is the atomic number of carbon?": "The atomic number of carbon is 6.",
    "What does NASA stand for?": "NASA stands for \"National Aeronautics and Space Administration\".",
    "Which is bigger, an elephant or a mouse?": "An elephant is bigger than a mouse.",
    "Is a whale smaller than an ant?": "No, a whale is not smaller than an ant.",
    "Sort these from smallest to biggest: elephant, mouse, dog": "mouse, dog, elephant",
    "Put these in order: Wednesday, Monday, Tuesday": "Monday, Tuesday, Wednesday",
    "Is a penguin a bird?": "Yes. A penguin is a bird.",
    "Is a whale a fish?": "No. A whale is not a fish.",
    "Is a dog an insect?": "No. A dog is not an insect.",
    "Is the Sun a star or a planet?": "Sun is a star.",
    "Is a tomato red or blue?": "A tomato is red.",
    "Is fire hot or cold?": "Fire is hot.",
    "Which big cat has stripes, the tiger or the lion?": "The answer is tiger.",
    "Which animal lays eggs, a hen or a cow?": "The answer is hen.",
    "yes or no: do dogs have tails?": "Yes",
    "True or false? Fish can swim.": "True",
    "True or false: Snow is black.": "False",
    "Can penguins fly?": "No. A penguin cannot fly.",
    "Which is the odd one out: apple, banana, car, pear?": "The odd one out is \"car\".",
    "Which of these is a fruit: cat, apple, chair?": "\"apple\" is a fruit.",
    "Which word is not a number: two, seven, shoe, ten?": "\"shoe\" is not a number.",
    "Which is a colour? A) dog B) red C) run": "B) red",
    "Name two vegetables.": "Two examples are carrot and potato.",
    "Name an animal that starts with c.": "One example is cat.",
    "Name two colours of a traffic light.": "Two examples are red and yellow.",
    "What are the primary colours?": "They are red, yellow and blue.",
    "Name two things that people wear on their feet.": "Two examples are shoes and socks.",
    "Dog is to puppy as cat is to what?": "Dog is to puppy as cat is to kitten.",
    "Fill in the blank: Grass is ___.": "Grass is green.",
    "Answer in capital letters: who wrote Hamlet?": "WILLIAM SHAKESPEARE",
    "Who was Mozart?": "Wolfgang Amadeus Mozart: prolific Austrian composer and child prodigy; master of the classical style in all its forms of his time (1756-1791).",
    "When was Mozart born?": "Mozart was born in 1756.",
    "Where is Dresden?": "Dresden is a city in southeastern Germany on the Elbe River; it was almost totally destroyed by British air raids in 1945.",
}  # fmt: skip
REFUSED = (
    "Who wrote the music for Hamlet?", "Who did Shakespeare write Hamlet for?", "Who translated Hamlet?",
    "Who wrote the book Hamlet and his Problems?", "Which planet is not closest to the Sun?", "Which planet is the second largest?",
    "Which is the second largest ocean?", "What is the second highest mountain in the world?", "What is the largest city in Canada?",
    "What is the largest river in Germany?", "What is the capital of Mars?", "What color is a red apple?", "What colour is a dog?",
    "What color is my car?", "What colour is the sky on Mars?", "What color is unripe banana?", "What is the color of love?",
    "Which animal does not bark?", "Which animal lays no eggs?", "What animal eats lions?", "What do lions not eat?", "Who eats cows?",
    "What do cows think?", "What is the largest animal that cannot swim?", "How many legs does a dog without a leg have?",
    "How many legs do a dog and a spider have together?", "How many legs does a table with three legs have?", "How many planets have rings?",
    "How many moons does Jupiter have?", "How many people live in Paris?", "How old is the Earth?", "How tall is the Eiffel Tower?",
    "Where is Springfield?", "Where is Georgia?", "Where was Mozart born?", "Where did Napoleon die?", "When was Paris founded?",
    "When did Shakespeare write Hamlet?", "Who is the president of the United States?", "Who is the king of England?",
    "Who won the World Cup in 2018?", "Who is the richest man?", "Who painted my house?", "Who invented pizza?", "Who invented the toilet?",
    "Who discovered fire?", "Who discovered Australia?", "Who is the first man?", "Who killed Kennedy?", "Is a tomato a fruit?",
    "Is a tomato a vegetable?", "Is a banana a berry?", "Is an animal a fish?", "Is a fruit an apple?", "Is gold a colour?",
    "Is Paris the capital of Germany?", "Can chickens fly?", "Do all birds fly?", "Do no birds fly?", "Do dogs like cats?", "Do cats eat mice?",
    "Do mice eat cats?", "Does the moon orbit the sun?", "Is water dry?", "Is snow always white?", "Is the sky always blue?", "Are all leaves green?",
    "Name two capital cities.", "Name two fruits that are blue.", "Name two animals that live in the desert.", "Name two animals that cannot fly.",
    "Name two people.", "Name two presidents.", "Name two rivers in Asia.", "List all fruits.", "List all animals.", "What are the fruits?",
    "Which is bigger, a human or a pig?", "Which is heavier, a kilogram of feathers or a kilogram of lead?", "Which is faster, a lion or a horse?",
    "Which is better, a cat or a dog?", "Which is older, Rome or Paris?", "Which is the odd one out: dog, cat, cow, lion?",
    "Odd one out: happy, sad, angry, table", "What rhymes with orange?", "What rhymes with silver?", "What rhymes with read?",
    "Does love rhyme with move?", "Does cough rhyme with though?", "Finish the sentence: The dog is ...", "Finish the sentence: I like to eat ...",
    "Complete: Once upon a ...", "Complete the sentence: I am ___ years old.", "Fill in the blank: The capital of France is ___.",
    "What does \"bank\" mean in German?", "What does \"gift\" mean in German?", "How do you say \"I am going to the store\" in Spanish?",
    "How do you say \"bank\" in Spanish?", "Translate \"the big red dog\" into French.", "Translate this letter into French.", "Translate: hello",
    "Translate hello.", "How do you say hello?", "What is love in French?", "What is the word for love?", "How do you say \"right\" in Spanish?",
    "How do you say \"light\" in Spanish?", "How do you say \"fall\" in German?", "What does \"sale\" mean in Italian?",
    "What does \"no\" mean in Spanish?", "What does \"pan\" mean in Spanish?", "What is the plural of fish in Spanish?",
    "Tom has 3 apples. Anna has 4 pears. How many apples do they have?", "Tom has 3 apples and 4 pears. How many apples does he have?",
    "Tom has 3 apples and 4 pears. How many pieces of fruit does he have?", "Tom has 5 apples. He eats an apple. How many apples are left?",
    "Tom has 5 apples. Anna eats 2. How many does Tom have?", "Tom has 5 apples. Anna gives him 2. How many does Tom have?",
    "Tom has 5 apples. He gives Anna 2. How many does Anna have?", "Tom has 5 red balls and 3 blue balls. How many balls does he have?",
    "There are 10 birds. A hunter shoots one. How many are left?", "I have 10 dollars. I spend half. How much is left?",
    "I have 3 sisters and 2 brothers. How many siblings do I have?", "A bus has 10 people. 3 get off and 5 get on. How many people are on the bus?",
    "If I eat 2 of 5 apples every day, how many are left after 2 days?",
    "A book costs 10 dollars and a pen costs 2 dollars. How much do they cost together?",
    "Apples cost 2 dollars each and I have 10 dollars. How many apples can I buy?",
    "A car drives 60 km in 2 hours. How far does it drive in 3 hours?", "What comes next: 1, 1, 2, 3, 5, ...?", "What comes next: 1, 4, 9, 16?",
    "What comes next: 2, 3, 5, 7, 11?", "What comes next: 1, 2, ...?", "What comes next: red, orange, yellow?", "What comes next: O, T, T, F, F?",
    "A train leaves at 11 and arrives at 1. How long does it take?", "How many hours are there between 9 and 5?", "What time is it in 3 hours?",
    "Write a poem.", "Write a story about a dog.", "Say something.", "Say it again.", "Repeat.", "Answer.", "Yes or no?", "True or false?",
    "Is it true?", "Reply with your name.", "Reply with the capital of France.", "Reply with one word.", "Replace a with b.", "Remove the word.",
    "Write the word that means happy.", "Write the opposite of hot.", "Make a word.", "Is \"quick\" a noun?", "Is \"run\" a noun?",
    "Is \"love\" a noun or a verb?", "What part of speech is \"well\"?", "Is it \"a unicorn\" or \"an unicorn\"?",
    "Is it \"a university\" or \"an university\"?", "a or an before hour", "Which is correct: \"they is\" or \"they are\"?",
    "What is the correct spelling of \"teh\"?", "Correct the spelling: \"there\"", "Correct the spelling: \"Smyth\"",
    "Is \"asdfgh\" spelled correctly?", "Is \"color\" spelled correctly?", "Is \"London\" spelled correctly?", "What does \"cat\" stand for?",
    "What does \"it\" stand for?", "What is IT short for?", "What is the symbol for peace?", "What is the chemical formula for sugar?",
    "What is the boiling point of iron?", "At what temperature does gold melt?", "What is the speed of sound?", "What is the biggest number?",
    "What is the best colour?", "What is the most popular name?", "What is made from wood?", "What is made of water?",
    "What is the opposite of a dog?", "Who is my mother?", "What do you call my friend?", "What do you call a person who does not eat meat?",
    "Which organ is the smallest?", "What organ pumps water?", "What part of the body do you use to fly?", "What do you see with a telescope?",
    "What do you use to eat?", "How many days do three weeks have?",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(ALMANAC, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(ALMANAC, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(ALMANAC)


def test_every_fact_has_a_sentence_and_required_words():
    content = almanac()
    assert len(content.facts) > 2_500
    assert [
        fact
        for fact in content.facts
        if not fact.required or not fact.sentence.strip() or fact.sentence[-1] not in '."'
    ] == []


def test_no_two_facts_answer_the_same_question_differently():
    kinds: dict[object, str] = {}
    for fact in almanac().facts:
        if fact.kinds in (("yes",), ("no",)):
            key = frozenset(fact.required) if not fact.is_ordered else fact.required
            assert kinds.setdefault(key, fact.kinds[0]) == fact.kinds[0], fact


def test_no_disputed_member_is_in_a_group():
    assert [
        group.title for group in almanac().groups if group.keys & group.disputed or "" in group.keys
    ] == []


def test_each_item_of_a_scale_is_listed_once():
    assert all(len(scale.places) == max(scale.places.values()) + 1 for scale in almanac().scales)


def test_the_list_of_elements_is_complete():
    symbols = almanac().symbols
    assert len(symbols) == 118 == len(set(symbols.values()))


def test_the_names_are_written_from_wordnets_database(tmp_path):
    (tmp_path / "data.noun").write_text(
        '00000001 18 n 02 Mozart 0 Wolfgang_Amadeus_Mozart 0 001 @i 00000002 n 0000 | Austrian composer (1756-1791); "x"  \n'
        "00000003 18 n 01 Living_Person 0 001 @i 00000002 n 0000 | politician (born in 1950)  \n"
        "00000004 15 n 01 Thames 0 001 @i 00000002 n 0000 | the longest river in England  \n"
        "00000005 15 n 01 river 0 001 @ 00000002 n 0000 | a large stream  \n"
    )
    assert write(tmp_path, tmp_path / "names.tsv.xz") == 2
    assert NAMES.stat().st_size < 300_000
