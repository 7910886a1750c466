"""The OpenAI Agents SDK over the Responses API, its default: a run, one more turn as a stream, and a form."""

import asyncio

from told import QUESTION, Weather, tell, weather

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
calls = []


@function_tool
def look_up(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return weather(city)


async def main() -> None:
    agent = Agent(name="forecaster", instructions="Be brief.", model="gpt-4o", tools=[look_up])
    first = await Runner.run(agent, QUESTION)
    again = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": "And Quito?"}])
    async for _ in again.stream_events():
        pass
    writer = Agent(name="writer", instructions="Be brief.", model="gpt-4o", output_type=Weather)
    asked = [*again.to_input_list(), {"role": "user", "content": "As JSON, please."}]
    form = await Runner.run(writer, asked)
    tell(calls=len(calls), answer=again.final_output, structured=form.final_output.model_dump())


asyncio.run(main())
