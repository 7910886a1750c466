"""LlamaIndex's agent that calls functions, over any OpenAI-style server, and a form by a tool that must be called."""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from told import QUESTION, Weather, tell, weather

calls = []


def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


llm = OpenAILike(
    model="gpt-4o",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
)


async def main() -> None:
    answer = await FunctionAgent(tools=[look_up], llm=llm, streaming=True).run(QUESTION)
    formed = await llm.as_structured_llm(Weather).achat([ChatMessage(role="user", content="Oslo's weather, as JSON.")])
    tell(calls=len(calls), answer=str(answer), structured=formed.raw.model_dump())


asyncio.run(main())
