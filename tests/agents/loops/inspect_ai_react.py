"""Inspect's ReAct agent, which ends by its tool `submit`."""

import tempfile

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.tool import tool
from told import QUESTION, tell, weather

calls = []


@tool
def look_up():
    async def execute(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        calls.append(city)
        return weather(city)

    return execute


task = Task(dataset=[Sample(input=QUESTION)], solver=react(tools=[look_up()]))
with tempfile.TemporaryDirectory() as folder:
    [log] = eval(task, model=get_model("openai/gpt-4o", responses_api=False), log_dir=folder, display="none")
    assert log.status == "success", log.error
    tell(calls=len(calls), answer=log.samples[0].output.completion)
