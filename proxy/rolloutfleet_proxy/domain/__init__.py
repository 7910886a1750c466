"""What the proxy deals in: data and pure rules, with no knowledge of HTTP or SQL."""
