package task

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// Bounds of a record, in bytes: larger arguments and results are values, errors are cut.
// recordBytes is more than all of them together with names and times.
const (
	recordBytes = 16 << 10
	inlineBytes = 6 << 10
	errorBytes  = 4 << 10
)

// room is the capacity of the stores of tasks: records, each with the room to be written again in
// any state, and bytes of values.
type room struct {
	records, bytes int64
}

var storeRoom = room{store.DefaultTasksBytes / recordBytes, store.DefaultTasksBytes}

// firedMost is how many tasks of one schedule are kept.
const firedMost = 100

// resultBytes is the room that a result takes which is not there yet.
const resultBytes = 1 << 20

// heldAgain is the retry time after a refusal for lack of memory: values are held only while
// they are passed on.
const heldAgain = time.Second

// A count of an account's use is reused for useKept, while this process has admitted at most one
// part in useParts of the free share since: other processes admit as well.
const (
	useKept  = time.Second
	useParts = 32
)

// use is the usage of the stores of tasks by a session, and by all sessions.
type use struct {
	room
	all   room
	left  room // of the share, when it was counted
	taken room // since then
	read  time.Time
}

// spent reports whether a count has admitted so much that it must be made again.
func (u *use) spent() bool {
	return useParts*u.taken.records > u.left.records || useParts*u.taken.bytes > u.left.bytes
}

// add adds an admitted amount, or subtracts it.
func (r *room) add(more room, times int64) {
	r.records, r.bytes = r.records+times*more.records, r.bytes+times*more.bytes
}

// account returns the account of a session, as far as it is known.
func (s *Service) account(session subjects.SessionID) subjects.SessionID {
	epoch, _ := s.opts.Sessions.Admit(session)
	return subjects.Account(session, epoch)
}

// holding is the room of an account that is taken for values in memory.
type holding struct {
	room    *fair.Room[subjects.SessionID]
	account subjects.SessionID
	sizes   []int64
}

// take takes room for one more; the error is busy.
func (h *holding) take(size int64) error {
	if !h.room.Take(h.account, size) {
		return toolmesh.Errorf(toolmesh.CodeBusy, "payloads of the session's tasks have its share of the %d bytes on this node: try again", h.room.Limit()).
			WithDetail("limit", "held_bytes").WithDetail("max", h.room.Limit()).
			WithDetail("retry_after_ms", heldAgain.Milliseconds()).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	h.sizes = append(h.sizes, size)
	return nil
}

// free gives all of it back.
func (h *holding) free() {
	for _, size := range h.sizes {
		h.room.Give(h.account, size)
	}
	h.sizes = nil
}

// roomFor reports whether a session may have so many more records and bytes: it may have as
// much as is free. So n sessions that take all that they get have 1/(n+1) each, and the
// next one finds as much. over lets it have that many times as much. stored is to be called
// once they are in the stores, or are not to be: until then they count beside these.
func (s *Service) roomFor(ctx context.Context, session subjects.SessionID, more room, over int64) (stored func(), err error) {
	account := s.account(session)
	s.mu.Lock()
	defer s.mu.Unlock()
	var u *use
	for u == nil || u.spent() { // by those that were given it at the same time
		s.mu.Unlock()
		u, err = s.useOf(ctx, session, account)
		s.mu.Lock()
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
		}
	}
	what := ""
	switch {
	case more.records > 0 && u.records+more.records > over*(s.stores.records-u.all.records):
		what = "tasks of the session are stored: " + strconv.FormatInt(u.records, 10)
	case more.bytes > 0 && u.bytes+more.bytes > over*(s.stores.bytes-u.all.bytes):
		what = "bytes of arguments and results of the session's tasks are stored: " + strconv.FormatInt(u.bytes, 10)
	default:
		if more.records == 0 && over == 1 { // nothing is stored yet
			return func() {}, nil
		}
		coming := s.coming[account]
		coming.add(more, 1)
		s.coming[account] = coming
		u.add(more, 1)
		u.all.add(more, 1)
		u.taken.add(more, 1)
		return func() { s.stored(account, more) }, nil
	}
	return nil, toolmesh.Errorf(toolmesh.CodeBusy, "the session has its share of the room for tasks (%s): remove tasks that have ended (mesh task rm), or wait", what).
		WithDetail("limit", "tasks").WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// stored subtracts an amount that is now stored.
func (s *Service) stored(account subjects.SessionID, more room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	coming := s.coming[account]
	if coming.add(more, -1); coming == (room{}) {
		delete(s.coming, account)
	} else {
		s.coming[account] = coming
	}
}

// useOf is the use of a session's account a moment ago. Of several simultaneous callers one lists
// it, even if that caller gives up.
func (s *Service) useOf(ctx context.Context, session, account subjects.SessionID) (*use, error) {
	known := func() *use {
		s.mu.Lock()
		defer s.mu.Unlock()
		if u := s.uses[account]; u != nil && time.Since(u.read) < useKept && !u.spent() {
			return u
		}
		return nil
	}
	if u := known(); u != nil {
		return u, nil
	}
	u, err, _ := s.counts.Do("use "+string(account), func() (any, error) {
		if u := known(); u != nil { // it came in between
			return u, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
		defer cancel()
		return s.countUse(ctx, session, account)
	})
	if err != nil {
		return nil, err
	}
	return u.(*use), nil //nolint:forcetypeassert // as above
}

func (s *Service) countUse(ctx context.Context, session, account subjects.SessionID) (*use, error) {
	s.mu.Lock()
	now, coming := time.Now(), s.coming[account] // before the listing: it is better to count twice than never
	s.mu.Unlock()
	keys, err := subjects.SessionTasks(session)
	if err != nil {
		return nil, invalid("session: %w", err)
	}
	if account == "" {
		keys = "*.*"
	}
	bucket := subjects.BucketTaskState
	records, err := s.bus.Info(ctx, subjects.KVStream(bucket), subjects.KVSubject(bucket, keys))
	if err != nil {
		return nil, err
	}
	values, err := s.bus.Info(ctx, valueStream, valueParts+strings.TrimSuffix(keys, "*")+">")
	if err != nil {
		return nil, err
	}
	u := &use{read: now, all: room{int64(records.State.Msgs), int64(values.State.Bytes)}} //nolint:gosec // fewer than 2^63
	mine := func(key string) bool {
		token, _, _ := strings.Cut(key, ".")
		return account != "" || s.uncreated(token)
	}
	for subject := range records.State.Subjects {
		if key, _ := subjects.KVKey(bucket, subject); mine(key) {
			u.records++
		}
	}
	for subject := range values.State.Subjects {
		id := strings.Split(strings.TrimPrefix(subject, valueParts), ".")
		if len(id) == 4 && mine(id[0]) { // else it is none of ours
			size, _ := strconv.ParseInt(id[2], 10, 64)
			u.bytes += max(size, 0)
		}
	}
	u.add(coming, 1)
	u.all.add(coming, 1)
	u.left = room{max(0, s.stores.records-u.all.records-u.records) / 2, max(0, s.stores.bytes-u.all.bytes-u.bytes) / 2}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.uses) >= mostCrowds {
		clear(s.uses)
	}
	s.uses[account] = u
	return u, nil
}

// uncreated reports whether the session of a token was not created.
func (s *Service) uncreated(token string) bool {
	session, err := subjects.DecodeToken(token)
	return err == nil && s.account(subjects.SessionID(session)) == ""
}

// cut has an error fit into a record.
func cut(e *toolmesh.Error) *toolmesh.Error {
	if e == nil {
		return nil
	}
	if text, err := json.Marshal(e); err == nil && len(text) <= errorBytes {
		return e
	}
	message := strings.ToValidUTF8(e.Message[:min(len(e.Message), errorBytes/4)], "")
	return toolmesh.Errorf(e.Code, "%s", message).WithOrigin(e.Origin).WithStarted(e.Started).WithRetryable(e.Retryable).WithDetail("cut", true)
}
