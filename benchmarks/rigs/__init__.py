"""The parts of a benchmark: processes, load, figures and their records."""
