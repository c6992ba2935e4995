package host

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/quota"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// maxReplays is how many replays are answered at once: more would not help. maxWaiting is
// how many requests wait for that, of maxRequest bytes each.
const (
	maxReplays = 16
	maxWaiting = 4096
	maxRequest = 8 << 10
)

// streams owns the node's streams, and the chunks that are stored of them.
type streams struct {
	*core
	stream.Node
	*chunks.Replayer

	chunkedMu sync.Mutex                    // taken before background.mu
	chunked   map[subjects.SessionID]string // epochs of the sessions of which chunks are stored
}

var _ stream.Store = (*streams)(nil)

func newStreams(k *core) *streams {
	st := &streams{core: k, Replayer: chunks.NewReplayer(k.bus, k.log), chunked: make(map[subjects.SessionID]string)}
	st.Node = stream.Node{
		ID: k.node, Base: k.base, Log: k.log, Replies: k.replies, Go: k.background.Go, Store: st,
		Quota: quota.New(k.opts.StreamQuota, chunksFor, time.Now), Account: k.sessions.Account, Replays: fair.NewQueue[subjects.SessionID](maxReplays, maxWaiting, k.background.Go),
	}
	return st
}

// replay answers a request for stored chunks, outside of the callback. Sessions alternate.
func (st *streams) replay(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if !st.bus.MayAnswer(m, s.Session) {
		st.counts.refusedReplies.Add(1)
		return
	}
	switch {
	case err != nil:
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	case m.Size() > maxRequest:
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "a request for stored chunks has %d bytes, at most %d are possible", m.Size(), maxRequest)
	}
	refuse := func(err error) {
		header, body := codec.ErrorReply(admit.Refusal(err))
		st.replies.Publish(m.Reply, header, body)
	}
	if err != nil {
		refuse(err)
		return
	}
	if !st.Replays.Do(st.sessions.Account(s.Session), func() {
		epoch, err := st.sessions.Settled(s.Session)
		if err != nil {
			refuse(err)
			return
		}
		st.Answer(st.base, s, epoch, m)
	}) {
		refuse(toolmesh.Errorf(toolmesh.CodeBusy, "too many replays of session %q wait at node %s: try again", s.Session, st.node).WithDetail("limit", "replays"))
	}
}

// Open implements [stream.Store].
func (st *streams) Open(deliver func(*nats.Msg, error)) (*bus.Inbox, error) {
	return st.bus.Open(deliver)
}

// MaxPayload implements [stream.Store].
func (st *streams) MaxPayload() int64 { return st.bus.MaxPayload() }

// Writer implements [stream.Store]. Chunks of sessions that were never created expire.
func (st *streams) Writer(session subjects.SessionID, rpc subjects.RPCID, opts chunks.WriterOptions) (stream.Writer, error) {
	w, err := chunks.NewWriter(st.bus, session, rpc, st.boot, opts)
	if err != nil {
		return nil, err
	}
	st.note(session, opts.Epoch)
	return w, nil
}

// note notes that chunks of a session are stored.
func (st *streams) note(session subjects.SessionID, epoch string) {
	st.chunkedMu.Lock()
	defer st.chunkedMu.Unlock()
	if epoch != "" {
		st.chunked[session] = epoch
	}
}

// replayed notes that a stream of this node is read from the store: any member of the mesh
// may have answered.
func (st *streams) replayed(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if err != nil {
		return
	}
	if call, ok := st.calls.Lookup(admit.Key{Session: s.Session, RPC: s.RPC}); ok {
		if running := call.Value.readers.Stream(); running != nil {
			running.Seen()
		}
	}
}

// chunksOver is how long after the end of a session its chunks are removed: by then its
// calls have ended.
const chunksOver = 5 * time.Second

// dropChunks has the chunks of sessions removed that have ended. The ticker calls it.
func (st *streams) dropChunks() {
	st.chunkedMu.Lock()
	defer st.chunkedMu.Unlock()
	for session, epoch := range st.chunked {
		if st.sessions.Seen(session, epoch) {
			continue
		}
		delete(st.chunked, session)
		st.background.Go(func() {
			select {
			case <-time.After(chunksOver):
			case <-st.base.Done():
				return
			}
			if !st.sessions.Over(session, epoch) { // the view is behind
				st.note(session, epoch)
				return
			}
			unused := func() bool { // the next one of its name may have stored some
				now, err := st.sessions.Now(session)
				return toolmesh.CodeOf(err) == toolmesh.CodeSessionNotFound || err == nil && now == ""
			}
			if err := store.Of(st.bus).DropChunks(st.base, session, epoch, unused); err != nil {
				st.log.Debug("the chunks of a session that has ended expire by themselves", slog.String("error", err.Error()))
			}
			st.Quota.Forget(session)
		})
	}
}
