"""The OpenAI Agents SDK: its `Runner` over chat completions."""

from told import QUESTION, Weather, tell, weather

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)
calls = []


@function_tool
def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


agent = Agent(name="forecaster", instructions="Be brief.", model="gpt-4o", tools=[look_up])
result = Runner.run_sync(agent, QUESTION)
writer = Agent(name="writer", instructions="Be brief.", model="gpt-4o", output_type=Weather)
structured = Runner.run_sync(writer, [*result.to_input_list(), {"role": "user", "content": "As JSON, please."}])
tell(calls=len(calls), answer=result.final_output, structured=structured.final_output.model_dump())
