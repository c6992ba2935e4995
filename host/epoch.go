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

// epochs knows the sessions' epochs for a host that has no view of them. What a
// stream stores carries its session's epoch, so each stream asks; unary calls
// store nothing and do not.
type epochs struct {
	mu    sync.Mutex
	known map[subjects.SessionID]epochAnswer
}

type epochAnswer struct {
	epoch string
	at    time.Time
}

// epoch returns the epoch of a session, empty for one that nobody created. The
// errors are session_not_found and unavailable. It may ask the registry.
func (h *Host) epoch(ctx context.Context, session subjects.SessionID) (string, error) {
	if h.opts.Sessions != nil {
		return h.opts.Sessions.Admit(session)
	}
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
