package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBucketsCoverEveryMicrosecondInOrder(t *testing.T) {
	previous := -1
	for micros := uint64(0); micros < 1<<15; micros++ {
		bucket := bucketOf(micros)
		if bucket != previous && bucket != previous+1 {
			t.Fatalf("%d µs falls into bucket %d after %d", micros, bucket, previous)
		}
		if top := bucketTop(bucket); top < micros {
			t.Fatalf("bucket %d of %d µs ends at %d", bucket, micros, top)
		}
		previous = bucket
	}
}

func TestQuantilesAreWithinTwoThousandths(t *testing.T) {
	var h histogram
	random := rand.New(rand.NewPCG(1, 2))
	micros := make([]int, 20_000)
	for i := range micros {
		micros[i] = int(random.ExpFloat64() * 400_000)
		h.record(time.Duration(micros[i]) * time.Microsecond)
	}
	slices.Sort(micros)
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		exact := float64(micros[int(q*float64(len(micros)))-1])
		got := float64(h.quantile(q).Microseconds())
		if got < exact || got > exact*1.003 {
			t.Errorf("quantile %v is %v µs, exactly %v", q, got, exact)
		}
	}
	if got := h.quantile(1); got != time.Duration(micros[len(micros)-1])*time.Microsecond {
		t.Errorf("the largest is %v, recorded as %v", micros[len(micros)-1], got)
	}
}

func TestAnEmptyHistogramReportsZero(t *testing.T) {
	var h histogram
	if report := h.report(); report != (latencyReport{}) {
		t.Errorf("%+v", report)
	}
}
