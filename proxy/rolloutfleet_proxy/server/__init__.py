"""uvicorn within bounds: heads, bodies and connections, before a request has a route."""
