package admit

import (
	"math/rand/v2"
	"testing"
	"time"
)

// However many calls there are, the names of the last are known, the memory is
// bounded, and it is known since when all are.
func TestPastIsBounded(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test repeats itself
	began := time.Unix(1_000_000, 0)
	p := past{since: began}
	const calls = 5 * maxNames / 2
	at := func(i int) time.Time { return began.Add(time.Duration(i) * 10 * time.Microsecond) } // 100,000 a second
	hashes := make([]uint64, calls)
	for i := range hashes {
		hashes[i] = random.Uint64()
		p.add(hashes[i], at(i))
	}
	const forgotten = maxNames // the first generation of three
	if want := at(forgotten - 1); !p.since.Equal(want) {
		t.Errorf("since %v, want %v", p.since.Sub(began), want.Sub(began))
	}
	for i := 0; i < calls; i += 7 {
		hash := hashes[i]
		if known := p.has(hash); known != (i >= forgotten) {
			t.Fatalf("call %d of %d: known %v", i, calls, known)
		}
	}
	for range 100_000 {
		if p.has(random.Uint64()) {
			t.Fatal("a call is known that never was")
		}
	}
	p.turn()
	for i := range maxNames { // both generations are full now
		p.add(hashes[i], at(calls))
	}
	size := 0
	for _, g := range []generation{p.old, p.young} {
		size += buckets * 24
		for _, b := range g.buckets {
			size += 8 * cap(b)
		}
	}
	t.Logf("%d names take %d bytes", p.old.n+p.young.n, size)
	if size > 64<<20 {
		t.Errorf("%d bytes, want 64 MiB at most", size)
	}
	p.sweep(at(calls))
	p.sweep(at(calls))
	if p.has(hashes[0]) || p.old.buckets != nil || p.young.buckets != nil || !p.since.Equal(at(calls)) {
		t.Errorf("after all of them: since %v", p.since.Sub(began))
	}
}
