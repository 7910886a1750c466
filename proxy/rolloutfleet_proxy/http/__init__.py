"""How the proxy answers over HTTP."""
