"""A loop by hand with the stock `openai` SDK: the message object that came back is what goes out again."""

import json

import openai
from told import QUESTION, TOOL, Weather, tell, weather

client = openai.OpenAI()
messages = [{"role": "user", "content": QUESTION}]
calls = 0
while True:
    message = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL]).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        calls += 1
        content = weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
messages.append({"role": "user", "content": "As JSON, please."})
parsed = client.chat.completions.parse(model="gpt-4o", messages=messages, tools=[], response_format=Weather)
tell(calls=calls, answer=message.content, structured=parsed.choices[0].message.parsed.model_dump())
