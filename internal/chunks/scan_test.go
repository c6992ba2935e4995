package chunks

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/internal/store"
)

// A page holds no more chunks behind a gap than it can return.
func TestScanHoldsOnlyReturnedEntries(t *testing.T) {
	t.Parallel()
	upTo := func(from, to int64) (all []int64) {
		for i := from; i <= to; i++ {
			all = append(all, i)
		}
		return all
	}
	backwards := upTo(1, 2000)
	slices.Reverse(backwards)
	for name, c := range map[string]struct {
		stored []int64
		body   int
		left   int64
		want   []int64
	}{
		"turned":         {slices.Concat(upTo(26, 2000), upTo(1, 25)), 10, 1000, upTo(1, 100)},
		"backwards":      {backwards, 10, 1000, upTo(1, 100)},
		"repeated":       {slices.Concat(upTo(500, 2000), upTo(2, 2000), upTo(1, 2000)), 10, 1000, upTo(1, 100)},
		"only one":       {backwards, 10, 1, upTo(1, 1)},
		"lacks its next": {upTo(2, 2000), 10, 1000, upTo(2, 101)},
		"of 1 MB":        {slices.Concat(upTo(2, 100), upTo(1, 1)), 1 << 20, 16 << 20, upTo(1, 7)},
		"of no body":     {slices.Concat(upTo(2, 40_000), upTo(1, 1)), 0, 1000, upTo(1, maxHeld/heldExtra)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := make([]byte, c.body)
			var got []int64
			scan := pageScan{next: 1, left: c.left}
			scan.send = func(m *store.Stored) error {
				got = append(got, int64(m.Pending))
				return nil
			}
			for i, seq := range c.stored {
				if err := scan.add(seq, &store.Stored{Seq: uint64(i + 1), Pending: uint64(seq), Data: body}); err != nil {
					t.Fatal(err)
				}
				most := min(c.left+int64(c.body), maxHeld)
				if scan.size > most || heldExtra*len(scan.held) > maxHeld {
					t.Fatalf("after %d: %d chunks of %d bytes are held, want at most %d bytes", i, len(scan.held), scan.size, most)
				}
				if scan.full() {
					break
				}
			}
			if err := scan.flush(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
}
