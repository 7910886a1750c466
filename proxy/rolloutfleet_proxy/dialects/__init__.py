"""The APIs that agents speak, one dialect each: a request's bytes to what is asked, a call's events to bytes."""
