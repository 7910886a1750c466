module rolloutfleet.dev/benchmarks/loadgen

go 1.26
