"""The cluster that the tests run on: one command makes it, one removes it (`python -m toolchain.kubernetes --help`)."""
