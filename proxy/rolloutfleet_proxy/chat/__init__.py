"""The OpenAI chat API: what a request asks, what an answer says."""
