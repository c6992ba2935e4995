package stream

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/quota"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

// Node is shared by the streams of a node. Its fields are set before the first stream.
type Node struct {
	ID      subjects.NodeID
	Base    context.Context //nolint:containedctx // ends with the host
	Log     *slog.Logger
	Replies Replies
	Go      func(f func()) // runs f in a goroutine, unless the host has stopped
	Store   Store
	Quota   *quota.Quota
	Account func(subjects.SessionID) subjects.SessionID // the account that a session counts for
	Replays *fair.Queue[subjects.SessionID]             // pages of chunks that are to be read
}

// Replies sends messages to callers. Its methods may be called concurrently.
type Replies interface {
	// Send publishes a message, and reports whether the connection takes its size. It must
	// not block.
	Send(m *nats.Msg) bool
	// Answer sends a reader the record of a call that is over.
	Answer(r *Reader, record admit.Record)
	// Acknowledge tells the reader of a live stream that its chunks are in the store.
	Acknowledge(r *Reader)
	// Fit cuts an error that no message can carry.
	Fit(e *toolmesh.Error) *toolmesh.Error
	// Keep stores a value that is larger than a message, for its caller to read by reference.
	Keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error)
}

// Execution is the call that readers belong to.
type Execution interface {
	// Epoch is the epoch of the call's session, which it may have to look up.
	Epoch(ctx context.Context) (string, error)
	// End tells the call's handler to stop.
	End(cause *toolmesh.Error)
}

// Store is where chunks are kept, and how the broker says that nothing subscribes to
// a subject.
type Store interface {
	bus.Opener
	Writer(session subjects.SessionID, rpc subjects.RPCID, opts chunks.WriterOptions) (Writer, error)
	Read(ctx context.Context, session subjects.SessionID, rpc subjects.RPCID, epoch string, req codec.ReplayRequest) (chunks.Page, error)
	// MaxPayload is how long a message may be, in bytes; 0 is not known.
	MaxPayload() int64
}

// Writer is a [chunks.Writer].
type Writer interface {
	Write(ctx context.Context, c codec.Chunk) error
	Flush(ctx context.Context) error
	Tick()
	High() int64
	Close()
}
