package host

import (
	"context"
	"errors"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// epochWait is how long the registry may take to say what a session's epoch
	// is, and epochBrief where the view knows one to go on with.
	epochWait  = 5 * time.Second
	epochBrief = time.Second
	// sessionEvery is how often a call that goes on looks whether its session does.
	sessionEvery = time.Second
)

// epoch returns the epoch of a session, empty for one that nobody created. The
// errors are session_not_found and unavailable. What a stream stores carries the
// epoch, so each stream of a session asks the registry: a view may be behind, and
// a caller faster than the news of the session that it created. Unary calls
// store nothing and ask only before a session is refused.
func (h *Host) epoch(ctx context.Context, session subjects.SessionID, stream bool) (string, error) {
	if h.opts.Sessions == nil {
		return h.registered(ctx, session, epochWait)
	}
	known, err := h.opts.Sessions.Admit(session)
	if !stream && err == nil || session == subjects.DefaultSession || !h.lease.joined.Load() {
		return known, err
	}
	epoch, asked := h.registered(ctx, session, epochBrief)
	switch {
	case toolmesh.CodeOf(asked) == toolmesh.CodeSessionNotFound:
		return "", asked
	case asked == nil && epoch != "":
		return epoch, nil
	}
	return known, err
}

// registered is what the registry says of a session's epoch.
func (h *Host) registered(ctx context.Context, session subjects.SessionID, wait time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	record, err := h.lease.store.SessionNow(ctx, session)
	switch {
	case errors.Is(err, bus.ErrNoKey):
		return "", nil
	case err != nil:
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the session cannot be looked up: %w", err).WithOrigin(toolmesh.OriginAgent)
	case record.Ended:
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", session).WithOrigin(toolmesh.OriginAgent)
	}
	return record.Epoch, nil
}

// followSession ends a call whose session has ended: that is promised of what the
// session runs. What the view says is asked of the registry before it counts, as a
// view may be behind. The ticker calls it.
func (h *Host) followSession(c *inflight, now time.Time) {
	if c.epoch == "" || c.ending.Load() != 0 || now.Sub(c.looked) < sessionEvery || now.Sub(c.start) < sessionEvery {
		return
	}
	c.looked = now
	if h.opts.Sessions != nil {
		epoch, err := h.opts.Sessions.Admit(c.req.Session)
		if err == nil && epoch == c.epoch || err != nil && toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound {
			return
		}
	}
	h.running.run(func() {
		epoch, err := h.registered(h.base, c.req.Session, epochWait)
		if err == nil && epoch != c.epoch || toolmesh.CodeOf(err) == toolmesh.CodeSessionNotFound {
			c.end(errSessionOver)
		}
	})
}
