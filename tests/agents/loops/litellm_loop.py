"""A loop with LiteLLM, whose own message object goes back into the conversation."""

import json

import litellm
from told import QUESTION, TOOL, Weather, tell, weather

messages = [{"role": "user", "content": QUESTION}]
calls = 0
while True:
    message = litellm.completion("openai/gpt-4o", messages, tools=[TOOL]).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        calls += 1
        content = weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "name": "weather", "content": content})
messages.append({"role": "user", "content": "As JSON, please."})
formed = litellm.completion("openai/gpt-4o", messages, response_format=Weather).choices[0].message.content
tell(calls=calls, answer=message.content, structured=Weather.model_validate_json(formed).model_dump())
