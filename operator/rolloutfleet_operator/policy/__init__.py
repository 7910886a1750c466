"""What the operator decides for a fleet on Kubernetes: pure functions of the observed state and of a clock.

`decide.py` is the entry point. Nothing here waits, reads a clock, talks to a server or has state: what must outlive
a restart of the operator is read back from the proxies' /stats, from pods and from the fleet's status.
"""
