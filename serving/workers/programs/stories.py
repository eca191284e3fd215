"""Word problems for the calculator: amounts that change, shares, prices, groups, ages and distances.

A story is read sentence by sentence, and every sentence must be understood. If the names of things differ between its
sentences, the story is rejected.
"""

import re
from fractions import Fraction

from serving.workers.programs.expressions import NUMBER, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

MOST_SENTENCES = 6
_WHO = r"(?:(?:my|his|her|your|the|an?|our) )?[a-z]+(?: (?:and|or) [a-z]+)?"
_PLACE = r"(?: (?:in|on|at|from|under|near|of|to) (?:(?:the|a|an|his|her|my|your|their|each) )?[a-z]+(?: [a-z]+)?)?"
_THING = r"(?P<thing>(?!do |does |did |are |is |were |will |would |more )[a-z]+(?: [a-z]+)?)"
_N = rf"(?P<n>{NUMBER})"
_MONEY = ["dollar", "euro", "pound", "cent", "yen", "franc", "rupee", "buck", "coin"]
_SIGN = r"[$€£]?"
_GAIN = (
    "buys?|bought|finds?|found|gets?|got|receives?|received|wins?|won|picks?|picked|collects?|collected|earns?|earned|adds?"
    "|added|bakes?|baked|makes?|made|borrows?|borrowed|catch(?:es)?|caught|saves?|saved|takes? in"
)
_LOSE = (
    "eats?|ate|loses?|lost|gives? away|gave away|gives?|gave|sells?|sold|uses?|used|spends?|spent|drops?|dropped|breaks?|broke"
    "|throws? away|threw away|drinks?|drank|donates?|donated|lends?|lent|removes?|removed|cuts?|pops?|popped|takes? away"
)
_COME = r"(?:come|came|join|joined|arrive|arrived|get on|got on|enter|entered|fly in|are added|were added|jump in|sit down|walk in|move in)"
_GO = (
    r"(?:(?:fly|flew|run|ran|swim|swam|walk|walked|go|went|drive|drove|jump|hop|roll|swim) (?:away|off|home|out)|leave|left|get off|got off|pop"
    r"|popped|break|broke|melt|die|died|fall(?: off| down)?|fell(?: off| down)?|are (?:eaten|sold|taken(?: away)?|lost|broken|gone|removed|stolen)"
    r"|were (?:eaten|sold|taken(?: away)?|lost|broken)|go out|stop|disappear)"
)
_SUBJECT = rf"(?P<who>{_WHO})"
_HAVE = r"(?:has|had|have|owns?|owned|holds?|carries|keeps?|kept|sees?|saw|reads?|picked|picks|bought|buys|collected|collects|found|finds|baked|bakes|made|saved|sold|sells|planted|plants|ate|eats)"
_START = pattern(rf"(?:if )?{_SUBJECT} {_HAVE} {_SIGN}{_N}(?: {_THING})?{_PLACE}")
_ALSO = pattern(rf"(?:and )?{_N} (?P<thing>[a-z]+){_PLACE}")
_THERE = pattern(
    rf"(?:if )?(?:there (?:are|were|is)|{_WHO} is cut into|{_WHO} is divided into) {_N} {_THING}{_PLACE}"
)
_SITS = pattern(
    rf"(?:if )?{_N} {_THING} (?:are|were|sit|sat|play|played|swim|stand|live|work|grow|hang|lie)(?:ing)?(?: sitting| playing| standing| parked)?{_PLACE}"
)
_GAINS = pattern(
    rf"(?:(?P<who>{_WHO}) )?(?:then |later |also )?(?:{_GAIN}) {_SIGN}{_N}(?: more| other| new)?(?: (?:of them|{_THING}))?{_PLACE}"
)
_IS_GIVEN = pattern(
    rf"{_WHO} (?:gives?|gave|brings?|brought|buys?|sends?) (?:him|her|me|you|them|us) {_SIGN}{_N}(?: more)?(?: {_THING})?"
)
_LOSES = pattern(
    rf"(?:(?P<who>{_WHO}) )?(?:then |later )?(?:{_LOSE}) {_SIGN}{_N}(?: (?:of (?:them|the [a-z]+|his [a-z]+|her [a-z]+|my [a-z]+|your [a-z]+)|{_THING}))?(?: away)?(?: (?:to|with|for|on|at|from) (?:(?:the|a|an|his|her|my|your|their) )?[a-z]+(?: [a-z]+)?)?"
)
_COMES = pattern(rf"{_N}(?: more| other| new)?(?: {_THING})?(?: more)? {_COME}(?: in| over| back)?{_PLACE}")
_GOES = pattern(rf"{_N}(?: of (?:them|the [a-z]+|these))?(?: {_THING})? {_GO}{_PLACE}")
_NOW = pattern(
    rf"(?:and )?how (?:many|much)(?: {_THING})? (?:(?:do|does|did|will|would|are|is|were|has|have)(?: there)?)"
    rf"(?: (?:{_WHO}))?(?: (?P<end>have|has|got|own|left|remain|stay|still there|there|keep|be left|be there|see|need))*"
    rf"(?: (?P<end2>left|now|then|remaining|over|left over|today|there|still))*(?P<all> (?:in total|altogether|in all|together|all together|total|in sum|combined))?"
    rf"(?: in (?:the|his|her|my|your|this) [a-z]+(?: [a-z]+)?| on (?:the|a) [a-z]+)?(?: now| left| altogether| in total| then| in all)*"
)
_MORE = pattern(rf"how many more(?: {_THING})? (?:does|do|did) (?P<who>{_WHO}) have than (?P<other>{_WHO})")
_KINDS = frozenset([
    "animals", "animal", "people", "person", "children", "child", "fruits", "fruit", "pieces", "toys", "things",
    "flowers", "pets", "vehicles", "students", "kids", "birds", "pupils", "persons", "guests", "players", "coins",
    "passengers", "items",
])  # fmt: skip
"""Words for things of several kinds together."""


def _same(one: str, other: str) -> bool:
    """Return whether two nouns are the same, apart from the plural."""
    return _stem(one) == _stem(other)


def _stem(word: str) -> str:
    word = re.sub(r"(?<!s)s$", "", word.casefold().split()[-1])
    return re.sub(r"e$", "", re.sub(r"(?:ie|y)$", "i", word))


def _sentences(text: str) -> list[str]:
    text = re.sub(r"^if ", "", text.strip(), flags=re.IGNORECASE)
    text = re.sub(r",? (?=how (?:many|much)\b)", ". ", text, flags=re.IGNORECASE)
    parts = re.split(
        rf"[.;]\s+|[.;]$|,? (?:and|but|then|and then) (?=(?:(?:then |later )?(?:he|she|they|we|i|you|it) )?(?:{_GAIN}|{_LOSE})\b)"
        rf"|,? and (?={NUMBER}\b)|,? and (?={_WHO} {_HAVE} )|, (?=(?:he|she|they|i|you|then)\b)",
        text,
        flags=re.IGNORECASE,
    )
    return [part.strip(" ,.") for part in parts if part.strip(" ,.")]


def _story(match: re.Match[str]) -> ExactAnswer:
    """Answer a story of amounts that change."""
    *statements, question_text = _sentences(match[0])
    question = _NOW.fullmatch(question_text)
    if (
        not statements
        or len(statements) > MOST_SENTENCES
        or (question is None and not _MORE.fullmatch(question_text))
    ):
        raise NotForProgram("The program does not understand this story.")
    owned: list[tuple[str, Fraction, str]] = []
    total, n_changes = Fraction(0), 0
    for sentence in statements:
        started = _START.fullmatch(sentence) or _THERE.fullmatch(sentence) or _SITS.fullmatch(sentence)
        if (
            started is None
            and owned
            and not n_changes
            and not any(rule.fullmatch(sentence) for rule in (_COMES, _GOES))
        ):
            started = _ALSO.fullmatch(sentence)
        is_new = started is not None and not _is_change(sentence, owned)
        if started and is_new:
            owned.append(
                (
                    _group(started, "who") or (owned[-1][0] if owned else ""),
                    read_number(started["n"]),
                    _thing(started, sentence),
                )
            )
            continue
        total += _change(sentence, owned)
        n_changes += 1
    if not owned:
        raise NotForProgram("The story does not say how many there are at first.")
    return _answer(owned, total, n_changes, question_text)


def _group(match: re.Match[str], name: str) -> str:
    return (match.groupdict().get(name) or "").casefold()


def _thing(match: re.Match[str], sentence: str) -> str:
    thing = _group(match, "thing")
    return thing or (
        "dollars" if "$" in sentence else "euros" if "€" in sentence else "pounds" if "£" in sentence else ""
    )


def _is_change(sentence: str, owned: list[tuple[str, Fraction, str]]) -> bool:
    """Return whether a sentence changes what the story has named before."""
    changed = _GAINS.fullmatch(sentence) or _LOSES.fullmatch(sentence)
    who = _group(changed, "who") if changed else ""
    pronouns = ("", "he", "she", "they", "it", "i", "you", "we")
    return bool(owned) and changed is not None and (who in pronouns or who == owned[0][0])


def _change(sentence: str, owned: list[tuple[str, Fraction, str]]) -> Fraction:
    first = next(iter(owned), ("", Fraction(0), ""))
    for rule, sign in ((_IS_GIVEN, 1), (_GAINS, 1), (_LOSES, -1), (_COMES, 1), (_GOES, -1)):
        if match := rule.fullmatch(sentence):
            who, thing = _group(match, "who"), _group(match, "thing")
            if who not in ("", "he", "she", "they", "it", "i", "you", "we", first[0]) or len(owned) != 1:
                raise NotForProgram("The story names several persons.")
            if thing and first[2] and not _same(thing, first[2]) and thing not in _KINDS:
                raise NotForProgram("The sentences name different things.")
            return sign * read_number(match["n"])
    raise NotForProgram("The program does not understand a sentence of this story.")


def _answer(
    owned: list[tuple[str, Fraction, str]], total: Fraction, n_changes: int, question_text: str
) -> ExactAnswer:
    things = [thing for _, _, thing in owned]
    if more := _MORE.fullmatch(question_text):
        amounts = {who: n for who, n, _ in owned}
        if len(owned) != 2 or n_changes or {_group(more, "who"), _group(more, "other")} != set(amounts):
            raise NotForProgram("The story names other persons.")
        value = amounts[_group(more, "who")] - amounts[_group(more, "other")]
    else:
        question = _NOW.fullmatch(question_text)
        assert question is not None
        thing = _group(question, "thing")
        is_same = all(_same(thing, each) for each in things if each) if thing else True
        is_money = thing == "money" or (
            not thing and any(_stem(each) in map(_stem, _MONEY) for each in things if each)
        )
        if not is_same and not is_money and not (thing in _KINDS and (len(owned) > 1 or n_changes)):
            raise NotForProgram("The sentences name different things.")
        if len(owned) > 1 and not is_same and thing not in _KINDS:
            raise NotForProgram("The story names several things.")
        if len(owned) > 1 and not (
            question["all"]
            or thing in _KINDS
            or "there" in question_text
            or " they " in f" {question_text} "
            or "total" in question_text
            or "class" in question_text
        ):
            raise NotForProgram("The story names several persons.")
        if not n_changes and len(owned) == 1:
            raise NotForProgram("Nothing changes in this story.")
        value = sum((n for _, n, _ in owned), Fraction(0)) + total
    if value < 0 or (
        value.denominator != 1 and not any(_stem(each) in map(_stem, _MONEY) for each in things if each)
    ):
        raise NotForProgram("The statements of the problem contradict each other.")
    name = things[0] if all(each and _same(each, things[0]) for each in things) else ""
    question_match = _NOW.fullmatch(question_text) or _MORE.fullmatch(question_text)
    name = name or (_group(question_match, "thing") if question_match else "")
    return ExactAnswer(
        _answer_text(owned, f"{show(value)}{f' {name}' if name else ''}", question_text), show(value)
    )


def _answer_text(owned: list[tuple[str, Fraction, str]], amount: str, question_text: str) -> str:
    """Return the sentence that answers a story."""
    who = owned[0][0]
    if len(owned) > 1:
        return f"That is {amount}."
    if not who or "have" not in question_text:
        return f"{amount} {'is' if amount.startswith('1 ') or amount == '1' else 'are'} {'left' if 'left' in question_text or 'remain' in question_text else 'there'}."
    return (
        f"You have {amount} now." if who in ("i", "you") else f"{who[0].upper()}{who[1:]} has {amount} now."
    )


def _value(number: Fraction, match: re.Match[str], sentence: str, *, whole: bool = True) -> ExactAnswer:
    """Return the answer with the sign or the unit of the story's money, if it has one. `{}` in the sentence stands for it."""
    if number < 0 or (whole and number.denominator != 1):
        raise NotForProgram("The result of this story is not a whole number.")
    groups = match.groupdict()
    sign, unit = (
        groups.get("sign") or "",
        groups.get("unit") or groups.get("unit2") or groups.get("unit3") or "",
    )
    text = f"{sign}{show(number)}{f' {unit}' if unit else ''}"
    return ExactAnswer(sentence.format(text), text)


def _check_same(match: re.Match[str], *pairs: tuple[str, str]) -> None:
    for one, other in pairs:
        a, b = _group(match, one), _group(match, other)
        if a and b and not _same(a, b):
            raise NotForProgram("The sentences name different things.")


def _numbers(match: re.Match[str], *names: str) -> list[Fraction]:
    return [
        read_number(match[name])
        if not re.fullmatch(r"an?|one|each", match[name] or "one", re.IGNORECASE)
        else Fraction(1)
        for name in names
    ]


def _unit_price(match: re.Match[str]) -> ExactAnswer:
    _check_same(match, ("one", "many"), ("unit", "unit2"))
    count, price, amount = _numbers(match, "count", "price", "amount")
    if not count:
        raise NotForProgram("Division by zero is undefined.")
    is_one = amount == 1
    what = f"{'One' if is_one else show(amount)} {match['many']} {'costs' if is_one else 'cost'}"
    return _value(price / count * amount, match, f"{what} {{}}.", whole=False)


def _product(match: re.Match[str]) -> ExactAnswer:
    _check_same(match, ("things", "again"), ("boxes", "boxes2"), ("per", "per2"))
    count, each = _numbers(match, "count", "each")
    things, boxes = _group(match, "again") or _group(match, "things"), _group(match, "boxes2")
    start = f"{show(count)} {boxes} have" if boxes and _group(match, "things") else "That is"
    return _value(count * each, match, f"{start} {{}}{f' {things}' if things else ''}.")


def _share(match: re.Match[str]) -> ExactAnswer:
    total, people = _numbers(match, "total", "people")
    if people < 1:
        raise NotForProgram("Division by zero is undefined.")
    return _value(
        total / people,
        match,
        f"Each one gets {{}}{f' {things}' if (things := _group(match, 'things')) else ''}.",
    )


def _age(match: re.Match[str]) -> ExactAnswer:
    age, years = _numbers(match, "age", "years2" if match["past"] else "years")
    return _value(age - years if match["past"] else age + years, match, "The age is {} years.")


def _other_age(match: re.Match[str]) -> ExactAnswer:
    age, years = _numbers(match, "age", "years")
    return _value(
        age + years if match["how"].casefold() == "older" else age - years, match, "The age is {} years."
    )


def _times_as_many(match: re.Match[str]) -> ExactAnswer:
    if (
        match["a"].casefold() != match["a2"].casefold()
        or match["b"].casefold() != (match["b2"] or match["b"]).casefold()
    ):
        raise NotForProgram("The story names other persons.")
    times = {"twice": Fraction(2), "half": Fraction(1, 2)}.get(match["times"].casefold())
    times = times or read_number(match["times"].casefold().removesuffix(" times"))
    return _value(times * read_number(match["n"]), match, "The answer is {}.")


_U = r"(?P<unit>dollars?|euros?|pounds?|cents?|pence|yen|rupees|francs)"
_U2, _U3 = _U.replace("unit>", "unit2>"), _U.replace("unit>", "unit3>")
_S = r"(?P<sign>[$€£])?"
_PAY = rf"(?:how much|what)(?: money| {_U3.replace('unit3', 'unit4')})? (?:do|does|will|would|did|must) (?:i|you|he|she|they|we|[a-z]+) (?:pay|have to pay|need to pay|spend|need)(?: in total| in all| altogether| for them)?"
_COST = rf"(?:how much|what)(?: {_U3})? (?:do|does|will|would|is the (?:cost|price) (?:of|for)|are) "
_LEN = r"(?:kilometres?|kilometers?|km|miles?|metres?|meters?)"
_A = rf"(?P<count>an?|one|each|{NUMBER})"
STORIES: tuple[Rule, ...] = (
    (pattern(rf"(?:if )?{_A} (?P<one>[a-z]+(?: [a-z]+)??) (?:costs?|is|are|cost) {_S}(?P<price>{NUMBER})(?: {_U})?[.,]? {_COST}(?P<amount>an?|one|{NUMBER}) (?P<many>[a-z]+(?: [a-z]+)??)(?: cost| together)?(?: in {_U2})?(?: cost)?(?: together| in total)?"), _unit_price),
    (pattern(rf"(?:if )?(?P<one>[a-z]+) (?:cost|are) {_S}(?P<price>{NUMBER})(?: {_U})? (?P<count>each)[.,]? {_COST}(?P<amount>{NUMBER}) (?P<many>[a-z]+)(?: cost)?(?: together| in total)?"), _unit_price),
    (pattern(rf"(?:if )?(?:i|you|he|she|[a-z]+) (?:buys?|bought|orders?|takes?) (?P<count>{NUMBER}) [a-z]+(?: [a-z]+)? (?:at|for|that cost|which cost) {_S}(?P<each>{NUMBER})(?: {_U})? each[.,]? {_PAY}"), _product),
    (pattern(rf"(?:i|you|he|she|[a-z]+) (?:have|has) (?P<count>{NUMBER}) {_S}(?P<each>{NUMBER})[- ]{_U} (?:bills?|notes?|coins?)\. how much(?: money)? (?:do|does) (?:i|you|he|she|[a-z]+) have(?: in total)?"), _product),
    (pattern(rf"(?:if )?(?:an?|one|each|every) (?P<boxes>[a-z]+) (?:has|contains|holds) (?P<each>{NUMBER}) (?P<things>[a-z]+)[.,]? how many (?P<again>[a-z]+) (?:do|are in|are there in|are on|are there on|will|does|have) (?P<count>{NUMBER}) (?P<boxes2>[a-z]+)(?: have| contain| hold)?(?: together| in total)?"), _product),
    (pattern(rf"(?:there are |(?:i|you|he|she|we|they|[a-z]+) (?:has|have) )(?P<count>{NUMBER}) (?P<boxes>[a-z]+)(?:,)? (?:with|of|each with|and each (?:[a-z]+ )?has) (?P<each>{NUMBER}) (?P<things>[a-z]+)(?: (?:in|on) (?:each|every)(?: [a-z]+| one)?| each)?\. how many (?P<again>[a-z]+) (?:are there|are|do|does)(?: (?:i|you|he|she|we|they|[a-z]+) have)?(?: there)?(?: in total| altogether| in all| together)?"), _product),
    (pattern(rf"(?:i|you|he|she|we|they|[a-z]+) (?:reads?|eats?|drinks?|walks?|runs?|writes?|makes?|bakes?|earns?|saves?|plants?|sells?|draws?) {_S}(?P<each>{NUMBER}) (?P<things>[a-z]+) (?:a|an|per|each|every) (?P<per>[a-z]+)\. how (?:many|much)(?: (?P<again>[a-z]+))? (?:do|does|will|can) (?:i|you|he|she|we|they|[a-z]+) [a-z]+ in (?P<count>{NUMBER}) (?P<per2>[a-z]+)"), _product),
    (pattern(rf"(?:if )?(?:an?|the) [a-z]+ (?:drives?|travels?|goes|runs?|flies|moves?|rides?) (?:at )?(?P<each>{NUMBER}) {_LEN} (?:in one|in an|per|an|every|each) hour[.,]? how (?:far|many {_LEN}) (?:does|do|will|can|would) (?:it|he|she|they|the [a-z]+) (?:go|drive|travel|run|fly|ride|move) in (?P<count>{NUMBER}) hours?"), _product),
    (pattern(rf"(?:(?:i|you|he|she|we|[a-z]+) (?:has|have) |there are )?(?P<total>{NUMBER}) (?P<things>[a-z]+)(?:\. (?:he|she|they) (?:shares?|divides?) them(?: equally| evenly)? (?:among|between|with)| (?:are |is )?(?:shared|divided|split)(?: equally| evenly)? (?:among|between|by)) (?P<people>{NUMBER}) [a-z]+(?: equally| evenly)?\. how many(?: [a-z]+)? (?:does|will|do|can|did) (?:each|every)(?: one| of them| [a-z]+)? (?:get|have|receive)"), _share),
    (pattern(rf"(?:there are )?(?P<total>{NUMBER}) (?P<things>[a-z]+)(?: and |\. )(?P<people>{NUMBER}) (?:[a-z]+ )?[a-z]+ (?:share|divide|split|want to share) (?:them|it)(?: equally| evenly| fairly)?\. how many(?: [a-z]+)? (?:does|will|can|do) (?:each(?: one| of them| [a-z]+)?|everyone) (?:get|have|receive)"), _share),
    (pattern(rf"(?P<people>{NUMBER}) (?:[a-z]+ )?(?:friends|people|children|kids|students|boys|girls|persons|siblings|brothers|sisters|pirates) (?:share|split|divide|want to share) (?P<total>{NUMBER}) (?P<things>[a-z]+) (?:equally|evenly|fairly)(?: among themselves)?[.,]? how many(?: (?P=things))? (?:does|will|can|did|do) (?:each(?: one| of them| [a-z]+)?|everyone|every one|they each) (?:get|have|receive)"), _share),
    (pattern(rf"(?P<total>{NUMBER}) [a-z]+ (?:want to |will |must )?(?:sit|sleep|are|stand|work|play)(?: at| in| on)? (?P<people>{NUMBER}) [a-z]+ (?:equally|evenly)\. how many [a-z]+ (?:sit|sleep|are|stand|work|play) (?:at|in|on) each(?: [a-z]+)?"), _share),
    (pattern(rf"(?:if )?(?:i am|you are|[a-z]+ is|my [a-z]+ is) (?P<age>{NUMBER})(?: years old)?(?: now| today)?[.,]? how old (?:will|was|were|would) (?:i|you|he|she|it|[a-z]+) (?:be )?(?:in (?P<years>{NUMBER}) years?|(?P<past>(?P<years2>{NUMBER}) years? ago))"), _age),
    (pattern(rf"(?:if )?(?:i am|[a-z]+ is|my [a-z]+ is) (?P<age>{NUMBER})(?: years old)?(?:\.|,? and|,) (?:his|her|my|[a-z]+'s) (?P<who>[a-z]+) is (?P<years>{NUMBER}) years? (?P<how>older|younger)(?: than (?:him|her|me|he|she|i|[a-z]+))?\. how old is (?:he|she|(?:his|her|my|[a-z]+'s) (?P=who))"), _other_age),
    (pattern(rf"(?P<a>[a-z]+) has (?P<times>twice|half|{NUMBER} times) as many [a-z]+ as (?P<b>[a-z]+)\. (?P<b2>[a-z]+) has (?P<n>{NUMBER}) [a-z]+\. how many [a-z]+ does (?P<a2>[a-z]+) have"), _times_as_many),
    (pattern(rf"(?P<b>[a-z]+) has (?P<n>{NUMBER}) [a-z]+(?:\.|,? and) (?P<a>[a-z]+) has (?P<times>twice|half|{NUMBER} times) as many(?: [a-z]+)?(?: as (?P<b2>[a-z]+))?\. how many(?: [a-z]+)? does (?P<a2>[a-z]+) have"), _times_as_many),
    (pattern(r"(?=.*\d|.*\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty)\b).+(?:[.,] ?|\band )how (?:many|much) .+"), _story),
)  # fmt: skip
