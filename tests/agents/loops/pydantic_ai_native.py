"""pydantic-ai: an agent with a tool, whose answer is a form that the model is held to (`NativeOutput`)."""

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from told import QUESTION, Weather, tell, weather

agent = Agent(OpenAIChatModel("gpt-4o"), output_type=NativeOutput(Weather), instructions="Be brief.")
calls = []


@agent.tool_plain
def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


output = agent.run_sync(QUESTION).output
tell(calls=len(calls), answer=str(output), structured=output.model_dump())
