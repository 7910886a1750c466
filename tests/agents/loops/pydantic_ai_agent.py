"""pydantic-ai: an agent whose answer is a form, which it asks for by a tool of its own."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from told import QUESTION, Weather, tell, weather

agent = Agent(OpenAIChatModel("gpt-4o"), output_type=Weather, instructions="Be brief.")
calls = []


@agent.tool_plain
def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


output = agent.run_sync(QUESTION).output
tell(calls=len(calls), answer=str(output), structured=output.model_dump())
