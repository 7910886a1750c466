"""The Claude Agent SDK: `query` with a tool of this process's own, which Claude Code calls through the SDK."""

import asyncio
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool
from told import QUESTION, tell, weather

calls = []


@tool("look_up", "The weather of a city.", {"city": str})
async def look_up(arguments: dict[str, Any]) -> dict[str, Any]:
    calls.append(arguments["city"])
    return {"content": [{"type": "text", "text": weather(arguments["city"])}]}


async def main() -> None:
    options = ClaudeAgentOptions(
        system_prompt="Be brief.",
        mcp_servers={"weather": create_sdk_mcp_server(name="weather", tools=[look_up])},
        permission_mode="bypassPermissions",
    )
    async for message in query(prompt=QUESTION, options=options):
        if isinstance(message, ResultMessage):
            tell(calls=len(calls), answer=message.result)


asyncio.run(main())
