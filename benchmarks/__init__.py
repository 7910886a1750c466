"""What RolloutFleet costs, measured beside the bare gateway. Run `python -m benchmarks --help`."""
