package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// subBits sets the resolution: each power of two of microseconds is cut in 2^subBits buckets, so that a quantile is
// off by at most 0.2 %.
const subBits = 9

const bucketCount = (64 - subBits) << subBits

// histogram counts durations in log-linear buckets of microseconds, like HdrHistogram. Safe for concurrent use.
type histogram struct {
	buckets [bucketCount]atomic.Uint32
	count   atomic.Int64
	sum     atomic.Int64
	max     atomic.Int64
}

func bucketOf(micros uint64) int {
	magnitude := bits.Len64(micros >> subBits)
	if magnitude == 0 {
		return int(micros)
	}
	return magnitude<<subBits + int(micros>>(magnitude-1)) - 1<<subBits
}

// bucketTop is the largest number of microseconds that bucketOf puts into the bucket.
func bucketTop(bucket int) uint64 {
	if bucket < 1<<subBits {
		return uint64(bucket)
	}
	magnitude := bucket >> subBits
	mantissa := uint64(bucket&(1<<subBits-1) + 1<<subBits)
	return (mantissa+1)<<(magnitude-1) - 1
}

func (h *histogram) record(d time.Duration) {
	micros := max(d.Microseconds(), 0)
	h.buckets[bucketOf(uint64(micros))].Add(1)
	h.count.Add(1)
	h.sum.Add(micros)
	for {
		seen := h.max.Load()
		if micros <= seen || h.max.CompareAndSwap(seen, micros) {
			return
		}
	}
}

// quantile is the smallest bucket top that at least q of the recorded durations do not exceed; 0 of none.
func (h *histogram) quantile(q float64) time.Duration {
	total := h.count.Load()
	if total == 0 {
		return 0
	}
	rank := max(int64(q*float64(total)+0.999999), 1)
	var seen int64
	for bucket := range h.buckets {
		seen += int64(h.buckets[bucket].Load())
		if seen >= rank {
			return time.Duration(min(bucketTop(bucket), uint64(h.max.Load()))) * time.Microsecond
		}
	}
	return time.Duration(h.max.Load()) * time.Microsecond
}

// latencyReport holds milliseconds.
type latencyReport struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (h *histogram) report() latencyReport {
	count := max(h.count.Load(), 1)
	return latencyReport{
		Mean: float64(h.sum.Load()) / float64(count) / 1e3,
		P50:  milliseconds(h.quantile(0.50)),
		P90:  milliseconds(h.quantile(0.90)),
		P99:  milliseconds(h.quantile(0.99)),
		P999: milliseconds(h.quantile(0.999)),
		Max:  float64(h.max.Load()) / 1e3,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
