"""Word problems for the calculator that need one operation: prices, shares, change, and things that come or
go.

Each pattern matches a whole story. If the names of things differ between its sentences, the story is rejected.
"""

import re

from serving.workers.programs.expressions import NUMBER, read_number, show
from serving.workers.programs.program import ExactAnswer, NotForProgram, Rule, pattern


def _unit_price(match: re.Match[str]) -> ExactAnswer:
    one, several = match["one"].casefold(), match["many"].casefold()
    if several not in (one, f"{one}s", f"{one}es", f"{one[:-1]}ies"):
        raise NotForProgram("The two sentences name different things.")
    if match["unit"] and match["unit2"] and match["unit"].casefold() != match["unit2"].casefold():
        raise NotForProgram("The two sentences name different currencies.")
    sign, unit = match["sign"] or "", f" {match['unit']}" if match["unit"] else ""
    count, each = read_number(match["count"]), read_number(match["price"])
    value = f"{sign}{show(count * each)}{unit}"
    return ExactAnswer(f"{show(count)} {match['many']} cost {value}.", value)


def _share_answer(match: re.Match[str]) -> ExactAnswer:
    people, total = read_number(match["people"]), read_number(match["total"])
    if people < 1 or (total / people).denominator != 1:
        raise NotForProgram(
            f"{show(total)} {match['things']} cannot be shared equally among {show(people)} people."
        )
    value = show(total / people)
    return ExactAnswer(f"Each one gets {value} {match['things']}.", value)


_GIVEN_AWAY = r"eats?|loses?|gives? away|sells?|uses?|spends?|drops?|breaks?|throws? away"
_RECEIVED = r"buys?|finds?|gets?|receives?|wins?|picks?|collects?|earns?"


def _left(match: re.Match[str]) -> ExactAnswer:
    before, change = read_number(match["before"]), read_number(match["change"])
    asked, things = match["asked"], match["things"].casefold()
    if (asked and asked.casefold() != things) or (match["again"] and match["again"].casefold() != things):
        raise NotForProgram("The sentences name different things.")
    takes = re.fullmatch(_GIVEN_AWAY, match["verb"], re.IGNORECASE)
    value = before - change if takes else before + change
    if value < 0 or value.denominator != 1 or (match["end"].casefold().endswith("left") and not takes):
        raise NotForProgram("The statements of the problem contradict each other.")
    who = "You have" if match["who"] == "I" else f"{match['who'].capitalize()} has"
    return ExactAnswer(f"{who} {show(value)} {things} now.", show(value))


def _of_each(match: re.Match[str]) -> ExactAnswer:
    things, again = match["things"].casefold(), match["again"].casefold()
    one, many = match["one"].casefold(), match["many"].casefold()
    if things.rstrip("s") != again.rstrip("s") or many not in (one, f"{one}s", f"{one}es"):
        raise NotForProgram("The two sentences name different things.")
    count, each = read_number(match["count"]), read_number(match["each"])
    return ExactAnswer(f"{show(count)} {many} have {show(count * each)} {again}.", show(count * each))


def _change(match: re.Match[str]) -> ExactAnswer:
    price, paid = read_number(match["price"]), read_number(match["paid"])
    units = {(match[name] or "").casefold().rstrip("s") for name in ("unit", "unit2") if match[name]}
    if len(units) > 1 or paid < price:
        raise NotForProgram(
            "The price and the payment have different currencies, or the payment is less than the price."
        )
    value = f"{match['sign'] or ''}{show(paid - price)}{' ' + match['unit'] if match['unit'] else ''}"
    return ExactAnswer(f"The change is {value}.", value)


def _leave(match: re.Match[str]) -> ExactAnswer:
    before, gone, asked = read_number(match["before"]), read_number(match["gone"]), match["asked"]
    if (asked and asked.casefold() != match["things"].casefold()) or gone > before:
        raise NotForProgram("The statements of the problem contradict each other.")
    value = show(before - gone)
    return ExactAnswer(f"{value} {match['things'].casefold()} are left.", value)


_MONEY = r"(?P<unit>dollars?|euros?|pounds?|cents?|pence|yen|rupees|francs)?"
STORIES: tuple[Rule, ...] = (
    (pattern(rf"(?:an?|one|each) (?P<one>[a-z]+) (?:costs|is) (?P<sign>[$€£])?(?P<price>{NUMBER})(?: {_MONEY})?\. (?:how much|what) (?:do|would|will) (?P<count>{NUMBER}) (?P<many>[a-z]+) cost(?: in {_MONEY.replace('unit', 'unit2')})?(?: together)?"), _unit_price),
    (pattern(rf"(?:an?|one|each|every) (?P<one>[a-z]+) (?:has|contains|holds) (?P<each>{NUMBER}) (?P<things>[a-z]+)\. how many (?P<again>[a-z]+) (?:do|are in|are there in|are on|are there on|will) (?P<count>{NUMBER}) (?P<many>[a-z]+)(?: have| contain| hold)?(?: together)?"), _of_each),
    (pattern(rf"(?:an?|the) [a-z ]{{1,30}} costs (?P<sign>[$€£])?(?P<price>{NUMBER})(?: {_MONEY})?\. (?:you|i|he|she|[A-Z][a-z]+) pays? with (?:an? )?[$€£]?(?P<paid>{NUMBER})(?:[ -]{_MONEY.replace('unit', 'unit2')})?(?: bill| note| coin)?\. how much change do(?:es)? (?:you|i|he|she|[A-Z][a-z]+) get(?: back)?"), _change),
    (pattern(rf"there are (?P<before>{NUMBER}) (?P<things>[a-z]+)(?: (?:in|on|at) (?:an? |the )?[a-z]+)?(?:\.|,? and) (?P<gone>{NUMBER})(?: of them)? (?:(?:fly|run|swim|walk|go|drive|jump) away|leave|are eaten|fall off|break|get off|go home|are sold|are taken(?: away)?)\. how many(?: (?P<asked>[a-z]+))? (?:are left|remain|are still there|stay)"), _leave),
    (pattern(rf"(?P<people>{NUMBER}) (?:[a-z]+ )?(?:friends|people|children|kids|students|boys|girls|persons) (?:share|split|divide) (?P<total>{NUMBER}) (?P<things>[a-z]+) (?:equally|evenly|fairly)(?: among themselves)?\. how many(?: (?P=things))? (?:does|will|can|did) (?:each(?: one| (?:of them|friend|person|child|kid|student|boy|girl))?|everyone|every one) (?:get|have|receive)"), _share_answer),
    (pattern(rf"(?P<who>[A-Z][a-z]+|I|he|she) (?:has|had|have) (?P<before>{NUMBER}) (?P<things>[a-z]+)(?: and|\. (?:he|she|I|then he|then she)|, then|, and) (?P<verb>{_GIVEN_AWAY}|{_RECEIVED}) (?P<change>{NUMBER})(?: more)?(?: (?:of them|(?P<again>[a-z]+)))?\. how many(?: (?P<asked>[a-z]+))? (?P<end>are left|do(?:es)? (?:he|she|(?P=who)) have(?: left| now)?|(?:has|have) (?:he|she) left|remain)"), _left),
)  # fmt: skip
