"""The control API, a file a subject: each route reads its request, calls one function, and answers."""
