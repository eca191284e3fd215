"""Token estimates without a tokenizer. In every script they are rather too high than far too low."""

import pytest

from tests.serving.api.served import Json, served, team

# A text, with the fewest and the most tokens of current tokenizers (o200k, cl100k, Claude's).
TEXTS = {
    "English": ("The quick brown fox jumps over the lazy dog. " * 20, 180, 260),
    "French": ("Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter. " * 20, 380, 640),
    "Russian": ("Съешь же ещё этих мягких французских булок, да выпей чаю. " * 20, 340, 900),
    "Greek": ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. " * 20, 280, 700),
    "Arabic": ("صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت " * 20, 500, 1000),
    "Hebrew": ("דג סקרן שט בים מאוכזב ולפתע מצא חברה " * 20, 400, 900),
    "Chinese": ("天地玄黄宇宙洪荒日月盈昃辰宿列张" * 20, 320, 560),
    "Japanese": ("いろはにほへとちりぬるを我が世誰ぞ常ならむ" * 20, 320, 620),
    "Korean": ("다람쥐헌쳇바퀴에타고파키스의고유조건은입술끼리만나야" * 20, 380, 900),
    "Hindi": ("ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश " * 20, 360, 1500),
    "Thai": ("เป็นมนุษย์สุดประเสริฐเลิศคุณค่ากว่าบรรดาฝูงสัตว์เดรัจฉาน" * 20, 500, 1500),
    "emoji": ("😀🎉🚀🫠" * 20, 100, 280),
    "families": ("👨‍👩‍👧‍👦" * 20, 140, 400),
}  # fmt: skip


@pytest.mark.parametrize(("words", "fewest", "most"), TEXTS.values(), ids=TEXTS.keys())
async def test_an_estimate_is_never_much_too_low(words: str, fewest: int, most: int) -> None:
    async with served(team()) as api:
        messages: list[Json] = [{"role": "user", "content": words}]
        bodies: dict[str, Json] = {
            "/v1/messages/count_tokens": {"messages": messages},
            "/v1/responses/input_tokens": {"input": words},
        }
        for path, body in bodies.items():
            answer = await api.http.post(path, json={"model": "a", **body})
            assert answer.status_code == 200, answer.text
            assert fewest <= answer.json()["input_tokens"] <= 1.5 * most


async def test_schemas_and_descriptions_of_tools_are_counted() -> None:
    words = "天地玄黄宇宙洪荒" * 50
    schema = {"type": "object", "properties": {"x": {"type": "string", "description": words}}}
    async with served(team()) as api:
        for tool in ({"description": words, "input_schema": {}}, {"input_schema": schema}):
            body = {
                "model": "a",
                "messages": [{"role": "user", "content": "?"}],
                "tools": [{"name": "t", **tool}],
            }
            answer = await api.http.post("/v1/messages/count_tokens", json=body)
            assert answer.json()["input_tokens"] >= len(words)
