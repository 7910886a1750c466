"""LangGraph's ready-made ReAct agent over `langchain-openai`, and structured output of the same model."""

import warnings

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from told import QUESTION, Weather, tell, weather

warnings.simplefilter("ignore")
from langgraph.prebuilt import create_react_agent  # noqa: E402

calls = []


@tool
def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


model = ChatOpenAI(model="gpt-4o")
state = create_react_agent(model, [look_up]).invoke({"messages": [("user", QUESTION)]})
structured = model.with_structured_output(Weather).invoke([*state["messages"], ("user", "As JSON, please.")])
tell(calls=len(calls), answer=state["messages"][-1].content, structured=structured.model_dump())
