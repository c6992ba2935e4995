package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// epochFresh is how long what the registry said of a session is believed.
	epochFresh = time.Second
	epochWait  = 5 * time.Second
	maxEpochs  = 4096
)

// epochs knows the sessions' epochs for a host that has no view of them, or whose
// view may be behind. What a stream stores carries its session's epoch, so each
// stream asks; unary calls store nothing and do not.
type epochs struct {
	mu    sync.Mutex
	known map[subjects.SessionID]epochAnswer
}

type epochAnswer struct {
	epoch string
	at    time.Time
}

// epoch returns the epoch of a session, empty for one that nobody created. The
// errors are session_not_found and unavailable. It asks the registry for streams
// of a session that it does not know, and before it refuses a session: a caller
// may be faster than the news of the session that it created.
func (h *Host) epoch(ctx context.Context, session subjects.SessionID, stream bool) (string, error) {
	if h.opts.Sessions == nil {
		return h.registered(ctx, session)
	}
	known, err := h.opts.Sessions.Admit(session)
	if known != "" || session == subjects.DefaultSession || err == nil && !stream || !h.lease.joined.Load() {
		return known, err
	}
	if epoch, asked := h.registered(ctx, session); asked == nil && epoch != "" {
		return epoch, nil
	}
	return known, err
}

// registered is what the registry says of a session's epoch, now or a moment ago.
func (h *Host) registered(ctx context.Context, session subjects.SessionID) (string, error) {
	now := time.Now()
	e := &h.epochs
	e.mu.Lock()
	known, ok := e.known[session]
	e.mu.Unlock()
	if ok && now.Sub(known.at) < epochFresh {
		return known.epoch, nil
	}
	ctx, cancel := context.WithTimeout(ctx, epochWait)
	defer cancel()
	record, err := h.lease.store.Session(ctx, session)
	if err == nil && record.Ended {
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", session).WithOrigin(toolmesh.OriginAgent)
	}
	if err != nil && !errors.Is(err, bus.ErrNoKey) {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the session cannot be looked up: %w", err).WithOrigin(toolmesh.OriginAgent)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil || len(e.known) >= maxEpochs {
		e.known = make(map[subjects.SessionID]epochAnswer)
	}
	e.known[session] = epochAnswer{record.Epoch, now}
	return record.Epoch, nil
}
