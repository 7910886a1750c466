"""One generation, from the request to the committed turn."""
