"""HTTP before a request has a route: heads, bodies and connections within bounds, and how errors are answered."""
