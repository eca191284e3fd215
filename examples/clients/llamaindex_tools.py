"""A tool with an agent of LlamaIndex."""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

URL = os.environ.get("PODIUM_URL", "http://127.0.0.1:8000")


def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    podium = OpenAILike(
        model="podium-mini",
        api_base=f"{URL}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=32_000,
    )
    agent = FunctionAgent(tools=[weather], llm=podium)
    print(await agent.run("What is the weather in Rome?"))


asyncio.run(main())
