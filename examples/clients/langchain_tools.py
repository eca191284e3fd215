"""A tool with LangChain, through all three of the server's APIs."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL = os.environ.get("PODIUM_URL", "http://127.0.0.1:8000")


@tool
def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


MODELS = {
    "chat": ChatOpenAI(model="podium-mini", base_url=f"{URL}/v1", api_key="none"),
    "responses": ChatOpenAI(
        model="podium-mini", base_url=f"{URL}/v1", api_key="none", use_responses_api=True
    ),
    "messages": ChatAnthropic(model="podium-mini", base_url=URL, api_key="none", max_tokens=1000),
}
for name, model in MODELS.items():
    history = [HumanMessage("What is the weather in Rome?")]
    while (answer := model.bind_tools([weather]).invoke(history)).tool_calls:
        history += [answer, *map(weather.invoke, answer.tool_calls)]
    print(f"{name}: {answer.text}")
