"""A task of inspect-ai that uses a tool: `inspect eval inspect_task.py --model openai-api/podium/podium-mini`."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def weather():
    async def execute(city: str):
        """The weather in a city.

        Args:
            city: its name.
        """
        return f"sunny in {city}"

    return execute


@task
def rome():
    samples = [Sample(input="What is the weather in Rome?", target="sunny")]
    return Task(dataset=samples, solver=[use_tools([weather()]), generate()], scorer=includes())
