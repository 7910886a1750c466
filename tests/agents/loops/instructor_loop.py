"""instructor: a form that it asks for as the one tool that must be called, again while it does not validate."""

import instructor
import openai
from pydantic import field_validator
from told import QUESTION, Weather, tell

tried = []


class Third(Weather):
    """The weather of one city."""

    @field_validator("degrees")
    @classmethod
    def at_the_third_try(cls, degrees: int) -> int:
        tried.append(degrees)
        if len(tried) < 3:
            raise ValueError("try another number")
        return degrees


client = instructor.from_openai(openai.OpenAI())
messages = [{"role": "user", "content": QUESTION}]
form = client.chat.completions.create(model="gpt-4o", messages=messages, response_model=Third, max_retries=4)
tell(calls=len(tried), answer=str(form), structured=form.model_dump())
