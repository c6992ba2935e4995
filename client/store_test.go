package client_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// chunkStore looks at MESH_CHUNKS as an operator may.
func chunkStore(t *testing.T, nc *nats.Conn) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "MESH_CHUNKS")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stored(t *testing.T, s jetstream.Stream, subject string) (n uint64) {
	t.Helper()
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range info.State.Subjects {
		n += count
	}
	return n
}

// purge removes everything before a sequence.
func purge(t *testing.T, s jetstream.Stream, before uint64) {
	t.Helper()
	if err := s.Purge(t.Context(), jetstream.WithPurgeSequence(before)); err != nil {
		t.Fatal(err)
	}
}
