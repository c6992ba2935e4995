package chunks_test

import (
	"math/rand/v2"
	"testing"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/chunks"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	o := chunks.NewOrder(3)
	if o.Next() != 3 || o.Gap() || o.Ready() {
		t.Error("a new order is not empty")
	}
	add := func(seqs ...int64) {
		for _, seq := range seqs {
			o.Add(codec.Chunk{Type: codec.ChunkData, Seq: seq})
		}
	}
	add(2, 1)
	if _, ok := o.Pop(); ok || o.Gap() {
		t.Error("what came before the beginning counts")
	}
	add(5)
	if !o.Gap() || o.Ready() {
		t.Error("3 and 4 are missing, and it is no gap")
	}
	add(3, 3)
	if o.Gap() || !o.Ready() {
		t.Error("3 is here, and it is a gap")
	}
	if c, ok := o.Pop(); !ok || c.Seq != 3 {
		t.Errorf("pop = %d", c.Seq)
	}
	if !o.Gap() {
		t.Error("4 is missing, and it is no gap")
	}
	add(4)
	for want := int64(4); want <= 5; want++ {
		if c, ok := o.Pop(); !ok || c.Seq != want {
			t.Errorf("pop = %d, want %d", c.Seq, want)
		}
	}
	if o.Gap() {
		t.Error("a gap behind the last one")
	}
	o.Note(6)
	o.Note(4)
	if !o.Gap() {
		t.Error("6 is known to be there, and it is no gap")
	}
}

func TestOrderOfAnything(t *testing.T) {
	t.Parallel()
	for range 200 {
		o := chunks.NewOrder(1)
		n := int64(rand.IntN(50) + 1)
		arrivals := make([]int64, 0, 2*n)
		for seq := range n {
			arrivals = append(arrivals, seq+1, rand.Int64N(n)+1)
		}
		rand.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
		next := int64(1)
		for _, seq := range arrivals {
			o.Add(codec.Chunk{Type: codec.ChunkData, Seq: seq})
			for c, ok := o.Pop(); ok; c, ok = o.Pop() {
				if c.Seq != next {
					t.Fatalf("of %v: %d comes where %d was due", arrivals, c.Seq, next)
				}
				next++
			}
		}
		if next != n+1 {
			t.Fatalf("of %v: it ends after %d", arrivals, next-1)
		}
	}
}
