import pytest
from pycountry import countries

from serving.workers.programs.countries import Atlas
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

ATLAS = Atlas("atlas")
ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "Hi, could you please tell me what the capital of Spain is?": "The capital of Spain is Madrid.",
    "which city is the capital of japan": "The capital of Japan is Tokyo.",
    "hey whats the capital of England": "The capital of England is London.",
    "capital of Peru?": "The capital of Peru is Lima.",
    "capital of the usa": "The capital of the United States is Washington, D.C.",
    "What's the capital city of the United Kingdom?": "The capital of the United Kingdom is London.",
    "Germany's capital": "The capital of Germany is Berlin.",
    "capital of Ivory Coast": "The capital of Côte d’Ivoire is Yamoussoukro.",
    "What is the capital of Kazakhstan?": "The capital of Kazakhstan is Astana.",
    "capital of South Africa": "South Africa has three capitals: Pretoria, Cape Town and Bloemfontein.",
    "Is Lyon the capital of France?": "No, the capital of France is Paris.",
    "is paris the capital of france?": "Yes, the capital of France is Paris.",
    "Which country has Paris as its capital?": "Paris is the capital of France.",
    "Madrid is the capital of which country?": "Madrid is the capital of Spain.",
    "On which continent is Brazil?": "Brazil is in South America.",
    "Which continent is Canada in?": "Canada is in North America.",
    "What continent is Russia in?": "Russia is in Europe and Asia.",
    "Is Spain in Europe?": "Yes, Spain is in Europe.",
    "is Japan in Africa": "No, Japan is in Asia.",
    "What currency is used in Japan?": "The currency of Japan is the Japanese Yen (JPY).",
    "which currency does Switzerland use?": "The currency of Switzerland is the Swiss Franc (CHF).",
    "What is the currency of Croatia?": "The currency of Croatia is the Euro (EUR).",
    "What language is spoken in Brazil?": "The official or main language of Brazil is Portuguese.",
    "what language do they speak in Mexico": "The official or main language of Mexico is Spanish.",
    "what language is spoken in Peru": "Spanish is an official language of Peru.",
    "What are the official languages of Switzerland?": "The official languages of Switzerland are French, German, Italian and Romansh.",
    "flag of Italy": "The flag of Italy is 🇮🇹.",
    "country code of Germany": "The ISO codes of Germany are DE, DEU and 276.",
    "what is the two letter code for Japan": "The two-letter ISO code of Japan is JP.",
    "calling code for France": "The calling code of France is +33.",
    "what countries border Portugal": "Portugal borders Spain.",
}  # fmt: skip
REFUSED = (
    "capital of Georgia", "capital of Narnia", "What is the capital of Texas?", "capital of Israel", "what's the capital of happiness",
    "what is the capital gains tax in France", "capital of Peru and Chile", "capital of the country with the most people", "capital",
    "what is the largest city in France", "What are the official languages of South Africa?", "How do you say Monday in Spanish?",
    "What does gracias mean in English?", "What is the population of Japan?", "Who is the president of France?", "flag of my school",
    "which country has the code XX", "Which country has Springfield as its capital?", "what continent is Atlantis in", "capital of congo",
    "How do you say May in French?", "translate I love you into German", "What currency should I invest in?", "is Berlin nice?",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(ATLAS, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(ATLAS, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(ATLAS)


def test_a_capital_leads_back_to_its_country():
    names = [
        "France",
        "Japan",
        "Peru",
        "Kenya",
        "Canada",
        "Poland",
        "Vietnam",
        "Iceland",
        "Chile",
        "Nepal",
        "Norway",
        "Egypt",
    ]
    for name in names:
        capital = say(ATLAS, f"capital of {name}, just the city")
        assert say(ATLAS, f"which country has {capital} as its capital? Just the name.") == name


@pytest.mark.parametrize("what", ["flag", "ISO code", "two-letter code"])
def test_every_country_of_the_standard_has_a_flag_and_a_code(what: str):
    entries = list(countries)
    refused = [each.name for each in entries if say(ATLAS, f"{what} of {each.name}").startswith("refused")]
    assert len(refused) < 0.1 * len(entries), refused
