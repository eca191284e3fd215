"""Prices, percentages, shares and rates in everyday stories, for the calculator.

A story is split into clauses. Each clause must be a known statement about money, a percentage or a count, or a question.
Nouns may be any words without numbers, because the answer does not depend on them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from serving.workers.programs.counts import amount_of
from serving.workers.programs.expressions import NUMBER, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_SIGN = r"[$€£]"
_UNITS = r"dollars?|euros?|pounds?|bucks|quid|eur|usd|gbp|francs?|yen|rupees"
_OTHER = r"(?!(?:and|not|but|except|without|more|less|than|twice|double|half|each|every|per|times|minus|plus|percent|of|tip|gratuity|discount|savings?|change|difference|reduction|deposit|profit|loss|share|rest|tax|vat|fee|service|sale|after|before|with|including|now|final|reduced|discounted|original|old|new|another|other|from|what|how|if|i|we|you|he|she|they|have|has|had|got|gets?|earns?|makes?|owes?|saved?|saves|spends?|spent|gives?|gave|needs?|wants?|won)\b)"
_NP = rf"(?:{_OTHER}[a-z][a-z'-]*+(?: of(?= [a-z]))? ?){{1,6}}?"
_MONEY = (
    rf"(?:{_SIGN} ?)?(?:{NUMBER})(?: ?(?:{_UNITS})\b|(?:{_SIGN}))?(?: a (?:month|year|week)| before tax)?"
)
_PERCENT = rf"(?:{NUMBER} ?(?:%|per ?cent\b)|half(?= (?:off|price)))"
_BE = r"(?:costs?|cost me|was|is|were|are|comes? to|came to|sells? for|is priced at|(?:normally|usually|originally) costs?|(?:is|was) (?:normally|usually|originally)|used to (?:cost|be)|(?:is|was) listed at|adds up to|totals?)"
_IT = (
    r"(?:it|they|that|this|he|she|i|we|you|the (?:price|total|cost|bill|amount|shop|store|restaurant|waiter)|everything|"
    rf"(?:the|my|our|this) {_NP})"
)
_FOR_IT = rf"(?: (?:for|on) (?:it|them|that|this|(?:the|my|our) {_NP}))?"
_NOW = r"(?: now| then| today| in the sale| after that| after the discount| in total| altogether| in all| at the end)*"


@dataclass
class _Story:
    """Numbers of a story by what they mean, and the sign and name of its money."""

    values: dict[str, Fraction] = field(default_factory=dict)
    factors: list[tuple[str, Fraction]] = field(default_factory=list)
    n_prices: int = 1

    def put(self, name: str, value: Fraction) -> None:
        if name == "price" and name in self.values:
            value, self.n_prices = value + self.values[name], self.n_prices + 1
        elif name in self.values:
            raise NotForProgram("The story states the same amount twice.")
        self.values[name] = value

    def value(self, name: str) -> Fraction:
        if name not in self.values:
            raise NotForProgram("The story does not state an amount that the question needs.")
        return self.values[name]

    def share(self, kinds: tuple[str, ...]) -> Fraction:
        """Return the fraction of its only percentage, which must have one of the kinds."""
        if len(self.factors) != 1 or self.factors[0][0] not in kinds:
            raise NotForProgram("The story does not state exactly one percentage of this kind.")
        return self.factors[0][1]

    def total(self) -> Fraction:
        value = self.value("price")
        for kind, share in self.factors:
            value *= 1 - share if kind == "off" else 1 + share
        return value


def _amount(text: str) -> Fraction:
    number = re.search(NUMBER, text, re.IGNORECASE)
    if number is None:
        raise NotForProgram("The story has an amount without a number.")
    return read_number(number[0])


def _percent(text: str) -> Fraction:
    return Fraction(1, 2) if text.casefold().startswith("half") else _amount(text) / 100


_OFF = r"(?:off|discount|discounted|reduction|reduced|cheaper|less|rebate|decrease|price cut)"
_UP = r"(?:more|more expensive|dearer|increase|rise|raise|price increase|higher|interest)"
_TIP = r"(?:tip|gratuity|service charge|service|tax|vat|sales tax|surcharge|delivery fee|fee)"
_P = rf"(?P<percent>{_PERCENT})"
_LEAD = rf"(?:now |today |currently )?(?:(?:{_IT} )?(?:is|are|was|were|gets?|got|has|have) |it's |they're |{_IT} )?(?:now |currently |also |been )?"
_TIP_FIRST = rf"(?P<tip>{_TIP})"
_STATEMENTS: tuple[tuple[str, str], ...] = (
    (rf"(?:if )?(?:{_NP}) ?(?:{_BE} )?(?:for |at )?(?P<price>{_MONEY})", ""),
    (rf"{_LEAD}(?:reduced|discounted|marked down|on sale|cut|drops?|dropped|falls?|fell|goes down|went down|comes down|goes on sale|went on sale)(?: for| at| with)? (?:by )?(?:an? )?{_P}(?: {_OFF})?{_NOW}", "off"),
    (rf"{_LEAD}(?:there is |with |at |by |for |i get |i got |we get |you get |gives? (?:me|us|you) |offers |a )?(?:an? )?{_P} ?{_OFF}{_NOW}(?: (?:with|for) (?:a|my|the) {_NP})?|(?:the|my|our) (?:discount|reduction) is (?P<percent2>{_PERCENT})", "off"),
    (rf"{_LEAD}(?:goes up|went up|going up|rises|rose|rising|increases|increased|increasing|raised|grows|grew|climbs)(?: by)? {_P}{_NOW}", "up"),
    (rf"{_LEAD}(?:an? )?{_P} {_UP}{_NOW}", "up"),
    (rf"(?:the )?{_TIP_FIRST} (?:is|of) {_P}", "tip"),
    (rf"(?:(?:i|we|you|they|he|she)(?:'d| would)? (?:also )?(?:like to |want to |wants to )?(?:leave|leaves?|left|add|adds|pay|pays|give|gives|tip|tips) |(?:with|plus|including|adding) |there is |{_IT} adds )?(?:an? |another )?{_P}(?: of)?(?: (?:in|as) (?:an? )?)? ?(?P<tip>{_TIP})?(?: on top| is added| extra)?{_FOR_IT}", "tip"),
    (rf"(?:i|we|you|he|she) (?:buy|bought|buys|have|had|ordered|order) (?:a |an |the |some )?{_NP} for (?P<price>{_MONEY})", ""),
    (rf"(?:i|we|they|you|he|she) (?:earn|earns|get|gets|make|makes|am paid|is paid|are paid|charge|charges) (?P<rate>{_MONEY}) (?:an|per|a|each|every) (?P<per>hour|day|week|month)", ""),
    (rf"(?:i|we|they|you|he|she) (?:work|works|worked|did|do) (?P<count>{NUMBER}) (?P<per>hour|day|week|month)s?(?: (?:this|last|a|per|each) (?:week|month|day))?", ""),
    (rf"(?:{_IT}|{_NP}) ?(?:is going up|goes up|went up|rose|rises|increased|has gone up|has risen|fell|falls|dropped|drops|went|went down|goes down|is going down|was reduced|changed|changes|grew|has grown) from (?P<old>{_MONEY}) to (?P<new>{_MONEY})", ""),
    (rf"(?:there are |we are |we're )?(?P<people>{NUMBER}) (?:of us|people|friends|persons|colleagues|flatmates|ppl)(?: (?:split|share|are sharing|want to split|want to share|are splitting) (?:it|that|the bill|the cost|them)(?: equally| evenly)?)?", ""),
    (rf"(?:we|they|you|i|let's)?(?: (?:want|have|need) to)? ?(?:split|share|divide) (?:it|that|this|the bill|the cost|the total)(?: equally| evenly)? (?:between|among|by|with|into|amongst) (?P<people>{NUMBER})(?: of us| people| friends| persons| ppl| ways)?", ""),
    (rf"(?:(?:i|we|he|she|you)(?:'ll| will)? )?(?:pay|pays|paid|hand over|give)(?: the cashier)?(?: with| by)? (?:an? )?(?P<paid>{_MONEY})(?:[- ](?:note|bill))?", ""),
)  # fmt: skip
_ASK = r"(?:how much|what|whats|what's|what is|what's)"
_QUESTIONS: tuple[tuple[str, Callable[[_Story], Fraction], str], ...] = (
    (rf"(?:how much|what|what's|whats|what is)(?: is| should| do| would| will)? ?(?:the |a |that |i |we |my )?{_TIP}(?: be| is| leave)?(?: in {_UNITS})?{_FOR_IT}", lambda s: s.value("price") * s.share(("tip",)), "price"),
    (rf"{_ASK} (?:do|does|will|would|can) {_IT} save{_FOR_IT}|{_ASK} (?:is|are) (?:the )?(?:discount|savings?|reduction)(?: in (?:money|{_UNITS}))?", lambda s: s.value("price") * s.share(("off",)), "price"),
    (rf"{_ASK} (?:(?:money )?(?:do|does|will|would|must|did) {_IT} (?:have to |need to )?(?:pay|cost|come to|spend)|(?:is|was|will be) (?:it|that)|(?:is |are |was |will be )?(?:the |my |our )?(?:new |sale |final |total |reduced |discounted |discount )*(?:price|cost|total|bill|amount|rent|salary|pay|sum)(?: be)?(?: to pay)?|(?:is|are) {_IT}){_FOR_IT}{_NOW}(?: with (?:the )?{_TIP})?{_FOR_IT}", _Story.total, "price"),
    (rf"(?:how much|what|whats|what's|what is)(?: does| do| will| should| must| would| is)? (?:each|everyone|everybody|each of us|each person|each one|every person)(?: of us| of them| person| one|'s share| friend| have to| need to)*(?: pay| owe| get| cost)?{_NOW}", lambda s: s.total() / s.value("people"), "price people"),
    (r"(?:what|whats|what's|what is|how much|how much is)(?: is| was| do| did| does| will)? ?(?:my|i|his|her|he|she|we|our|you|your)(?: total)? (?:pay|earn|earnings|wages?|make|get|get paid|salary|income)(?: before tax| in total| altogether| for (?:that|the) (?:week|month|day))*", lambda s: s.value("rate") * s.value("count"), "rate count"),
    (r"(?:what|by what|whats|what's|how many|what is the|what's the|by how many)(?: is| was)?(?: the)? ?(?:percentage|percent|per cent|%)(?: (?:increase|decrease|change|rise|drop|reduction|raise|growth|fall|discount))?(?: is| was| did)?(?: that| it| this)?(?: (?:increase|decrease|change|rise|drop|fall|go up|went up))?", lambda s: abs(s.value("new") - s.value("old")) / s.value("old") * 100, "old new"),
    (r"(?:how much|what)(?: change| money| is my change| is the change| will be the change)(?: do| will| should| does)?(?: (?:i|we|you|he|she))?(?: get| receive| be given)?(?: back)?", lambda s: s.value("paid") - s.total(), "price paid"),
)  # fmt: skip
_PATTERNS = tuple((pattern(text), kind) for text, kind in _STATEMENTS)
_QUESTION_RULES = tuple((pattern(text), rule, unit) for text, rule, unit in _QUESTIONS)
_COMMAS = re.compile(
    r"(?<!\d)[,;] |(?<=\d)[,;] |[.?!;:]+ | - |,? (?:and|but|so|then) (?=[a-z0-9$€£])", re.IGNORECASE
)


def _read(story: _Story, clause: str) -> None:
    for rule, kind in _PATTERNS:
        if match := rule.fullmatch(clause):
            groups = {name: text for name, text in match.groupdict().items() if text}
            if kind == "tip" and not re.search(r"\btips?\b|" + _TIP, clause, re.IGNORECASE):
                continue
            if percent := groups.get("percent") or groups.get("percent2"):
                share = _percent(percent)
                if kind == "off" and share > 1:
                    raise NotForProgram("A discount is at most 100 %.")
                story.factors.append((kind, share))
            for name in ("price", "rate", "count", "old", "new", "people", "paid"):
                if name in groups:
                    story.put(name, _amount(groups[name]))
            if "per" in groups and story.values.setdefault(
                "per", Fraction(hash(groups["per"].casefold()))
            ) != hash(groups["per"].casefold()):
                raise NotForProgram("The story names different units of time.")
            return
    raise NotForProgram("The program does not understand a sentence of this story.")


def _price(match: re.Match[str]) -> ExactAnswer:
    """Answer a story of prices, clause by clause. The question is its last clause."""
    clauses = [each.strip(" ,.?!") for each in _COMMAS.split(match[0].strip()) if each.strip(" ,.?!")]
    questions = [each for each in _QUESTION_RULES if each[0].fullmatch(clauses[-1])]
    if not questions or not 2 <= len(clauses) <= 6:
        raise NotForProgram("The program does not understand what this story asks.")
    story = _Story()
    for clause in clauses[:-1]:
        _read(story, clause)
    names = set(story.values) - {"per"}
    question = next((each for each in questions if set(each[2].split()) == names), questions[0])
    needs = question[2].split()
    n_shares = len(story.factors)
    if names != set(needs) or (
        n_shares if "price" not in needs else n_shares + story.n_prices < 2 and needs == ["price"]
    ):
        raise NotForProgram("The story does not state exactly the amounts that the question needs.")
    if story.n_prices > 1 and (
        n_shares
        or not re.search(
            r"total|altogether|in all|change|pay\b|come to|each|bill", clauses[-1], re.IGNORECASE
        )
    ):
        raise NotForProgram("The story states several prices.")
    if "old" in needs and not story.value("old"):
        raise NotForProgram("A percentage of zero is undefined.")
    value = question[1](story)
    if value < 0 or story.values.get("people", 1) < 1:
        raise NotForProgram("The statements of the story contradict each other.")
    return _statement(value, "%" if "old" in needs else "money", match[0])


def _statement(value: Fraction, unit: str, text: str) -> ExactAnswer:
    if unit == "%":
        shown = (
            show(value)
            if (value * 100).denominator == 1
            else f"about {show(Fraction(round(value * 100), 100))}"
        )
        return ExactAnswer(f"That is {shown} %.", f"{shown} %")
    shown = _money(value, text)
    return ExactAnswer(f"That is {shown}.", shown)


def _money(value: Fraction, text: str) -> str:
    """Return an amount with the sign or name of the only currency in `text`, rounded to cents if necessary."""
    exact = (value * 100).denominator == 1
    number = show(value) if exact and value.denominator == 1 else f"{float(round(value, 2)):,.2f}"
    about = "" if exact else "about "
    signs = set[str](re.findall(_SIGN, text))
    names = {each.casefold().rstrip("s") for each in re.findall(rf"\b(?:{_UNITS})\b", text, re.IGNORECASE)}
    if len(signs) + len(names) > 1:
        raise NotForProgram("The story names several currencies.")
    if signs:
        return f"{about}{signs.pop()}{number}"
    name = next(iter(re.findall(rf"\b(?:{_UNITS})\b", text, re.IGNORECASE)), "")
    return f"{about}{number}{f' {name.casefold()}' if name else ''}"


def _split(match: re.Match[str]) -> ExactAnswer:
    """Answer a command to split a bill, maybe with a tip."""
    total = _amount(match["price"]) * (1 + (_percent(match["percent"]) if match["percent"] else 0))
    people = read_number(match["people"])
    if people < 1 or people.denominator != 1:
        raise NotForProgram("A bill is split among a whole number of people.")
    shown = _money(total / people, match[0])
    tip = f" with the {match['tip'] or 'tip'}" if match["percent"] else ""
    return ExactAnswer(f"Each of the {show(people)} pays {shown}{tip}.", shown)


def _proportion(match: re.Match[str]) -> ExactAnswer:
    """Answer an amount that grows with the number of things or people."""
    count, amount = read_number(match["count"]), amount_of(match["amount"])
    if (
        match["one"].split()[-1].casefold().rstrip("s") != match["many"].split()[-1].casefold().rstrip("s")
        or count <= 0
    ):
        raise NotForProgram("The sentences name different things.")
    value = _amount(match["price"] or match["price2"]) / count * amount
    if match["unit"]:
        return ExactAnswer(
            f"You need {show(value)} {match['unit']}."
            if "need" in match[0]
            else f"That is {show(value)} {match['unit']}.",
            f"{show(value)} {match['unit']}",
        )
    return _statement(value, "money", match[0])


_BILL = r"(?:(?:a|the|my|our) )?(?:(?:restaurant |dinner |lunch |total )?(?:bill|cost|total|check|tab|amount|sum) (?:of )?)?"
_WITH = rf"(?:,? (?:with|plus|and|including|adding|and add)(?: an?)? {_P} (?P<tip>{_TIP})(?: included| on top| added)?)?"
_WAYS = r"(?: ?(?:people|friends|persons|ppl|of us|ways|guests|colleagues|flatmates|kids|children))?(?: equally| evenly)?"
PRICES: tuple[Rule, ...] = (
    (pattern(rf"(?:split|divide|share|how do (?:i|we|you) split) {_BILL}(?P<price>{_MONEY}){_WITH}(?: equally| evenly)? (?:by|between|among|amongst|with|into|in|for) (?P<people>{NUMBER}){_WAYS}{_WITH.replace('percent>', 'percent2>').replace('tip>', 'tip2>')}(?P<x>)"), lambda m: _split(_one_tip(m))),
    (pattern(rf"(?:what|how much) (?:is|are) (?:an? )?{_P} (?P<tip>tip|gratuity|service charge|vat|sales tax|tax|discount) (?:on|for|of|off) {_BILL}(?P<price>{_MONEY})(?: bill| meal| dinner)?"), lambda m: _statement(_amount(m["price"]) * _percent(m["percent"]), "money", m[0])),
    (pattern(rf"(?:if )?(?P<count>{NUMBER}) (?P<one>{_NP}) (?:(?:costs?|come to|are|is) (?P<price>{_MONEY})|weighs? (?P<price2>{NUMBER}) ?(?P<unit>[a-z]+))[,.;]? (?:then )?how much (?:would|will|do|does|is|are) (?P<amount>{NUMBER}|an?) (?P<many>{_NP}) ?(?:be|cost|weigh)?(?: at (?:the same|this|that) price(?: each)?)?"), _proportion),
    (pattern(rf"(?:(?:a|the|my|this) )?recipe (?:for|serves|is for)(?: (?P<count>{NUMBER}))(?: people| persons| servings)? (?:uses|needs|calls for|takes|requires|says|and needs|and uses) (?P<price>{NUMBER})(?P<price2>) ?(?P<unit>[a-z]+)(?: of)? (?P<one>{_NP})[.,;]? (?:but )?(?:i'm|im|i am|we are|we're|i want to|i'll be) (?:cooking|cook|baking|bake|make it|making it) for (?P<amount>{NUMBER})(?: people| persons)?[.,;]? how (?:much|many)(?: [a-z]+ of)? (?P<many>{_NP}) ?(?:do|will|should) (?:i|we) (?:need|use)"), _proportion),
    (pattern(r"(?=.*\d)(?=.*\b(?:what|how|whats|what's)\b).+"), _price),
)  # fmt: skip


def _one_tip(match: re.Match[str]) -> re.Match[str]:
    """Return a match whose tip stands before the number of people."""
    if match["percent"] and match["percent2"]:
        raise NotForProgram("The bill has two additions.")
    if not match["percent2"]:
        return match
    text = f"split {match['price']} with {match['percent2']} {match['tip2']} by {match['people']}"
    split_match = PRICES[0][0].fullmatch(text)
    assert split_match is not None
    return split_match
