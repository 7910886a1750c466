"""`python -m rolloutfleet_proxy`."""

from rolloutfleet_proxy.cli import main

if __name__ == "__main__":  # A spawned helper process imports this module without running it.
    main()
