"""smolagents: its agent that calls tools, which it must, `final_answer` in the end."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool
from told import QUESTION, tell, weather

calls = []


@tool
def look_up(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    calls.append(city)
    return weather(city)


model = OpenAIModel("gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[look_up], model=model, verbosity_level=0)
answer = agent.run(QUESTION)
tell(calls=len(calls), answer=str(answer))
