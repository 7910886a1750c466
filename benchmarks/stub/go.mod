module rolloutfleet.dev/benchmarks/stub

go 1.26
