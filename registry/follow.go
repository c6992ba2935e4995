package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// follow is how far one bucket is known. The stream numbers its messages without gaps, so a
// gap in the received numbers is a missed message. The view's lock guards it.
type follow struct {
	bucket string
	prefix string // of the republished subjects, the key follows

	keys    map[string]keyState
	top     uint64              // everything up to here is known
	ahead   map[uint64]struct{} // received behind a gap
	latest  time.Time           // of received changes, by the broker's clock
	created time.Time           // of the stream; another one means that it was made anew
	reading bool                // what is read now is still missing
	whole   bool                // read everything, not only missing changes
	tail    bool                // ask the leader for changes behind top that were not received
	count   bool                // with tail: marks of keys that are gone may have gone themselves
	again   time.Time           // next whole read, for losses that the tail does not show; zero: none
	keep    time.Time           // until then a reading forgets nothing; zero = never
}

// keyState is the last revision of a key, also of a deleted one: a reading under way must not
// bring that back.
type keyState struct {
	revision uint64
	gone     bool
	at       time.Time // when it was written, by the broker's clock
}

// change is one stored message of a bucket.
type change struct {
	key  string
	seq  uint64
	at   time.Time
	gone bool
	data []byte
}

func newFollow(bucket string) *follow {
	return &follow{
		bucket: bucket, prefix: strings.TrimSuffix(subjects.RegistryChanges(bucket), ">"),
		keys: make(map[string]keyState), ahead: make(map[uint64]struct{}), whole: true,
	}
}

func parseChange(f *follow, m *nats.Msg) (change, bool) {
	key, ok := strings.CutPrefix(m.Subject, f.prefix)
	if !ok || m.Header == nil {
		return change{}, false
	}
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return change{}, false // a publisher there that is not the stream
	}
	at, _ := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	return change{key: key, seq: seq, at: at, gone: store.Gone(m.Header), data: m.Data}, true
}

// heard records the number of a received change and reports whether a reading is needed.
func (f *follow) heard(seq uint64, at time.Time) (missing bool) {
	newer := at.After(f.latest)
	if newer {
		f.latest = at
	}
	if seq > f.top {
		f.ahead[seq] = struct{}{}
		f.join()
	} else if newer && !f.created.IsZero() {
		f.whole = true // not the same once more: the stream was made anew and counts from 1
	}
	return f.needsReading()
}

// join moves the top over the received numbers without a gap.
func (f *follow) join() {
	maps.DeleteFunc(f.ahead, func(seq uint64, _ struct{}) bool { return seq <= f.top })
	for {
		if _, ok := f.ahead[f.top+1]; !ok {
			return
		}
		f.top++
		delete(f.ahead, f.top)
	}
}

func (f *follow) needsReading() bool { return f.reading || f.whole || f.tail || len(f.ahead) > 0 }

const (
	// marksStay is the min time for which the mark of a key's end can be read.
	marksStay = 40 * time.Second
	// readsAgain is the mean time from a lost connection to another whole read: only that shows
	// changes that a failed broker lost and others overwrote. It is spread, as many processes lose
	// their connections together.
	readsAgain = 15 * time.Minute
)

// away notes that nothing was received for a time.
func (f *follow) away(d time.Duration) {
	f.tail = true
	f.count = f.count || d > marksStay
	f.again = time.Now().Add(readsAgain/2 + rand.N(readsAgain))
}

// live is the number of keys that are known to exist.
func (f *follow) live() (n uint64) {
	for _, k := range f.keys {
		if !k.gone {
			n++
		}
	}
	return n
}

// accept reports whether a change is later than the known one of its key, and records it.
func (f *follow) accept(c change) bool {
	if k, known := f.keys[c.key]; known && c.seq <= k.revision {
		return false
	}
	f.keys[c.key] = keyState{revision: c.seq, gone: c.gone, at: c.at}
	return true
}

// readFirst reads everything for the first time. Without a leader it tries again until ctx
// ends; any other failure ends it at once.
func (v *View) readFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for {
		err := v.read(ctx, false)
		if err == nil && v.Stale() == 0 {
			return nil
		}
		if err != nil && !leaderless(err) && ctx.Err() == nil {
			return err
		}
		if late := pause(ctx, readAgainAfter); late != nil {
			if err == nil {
				err = late
			}
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry was not read in time: %w", err).WithOrigin(toolmesh.OriginMesh)
		}
	}
}

// leaderless reports whether a reading seems to have failed for want of a leader.
func leaderless(err error) bool {
	return !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrJetStreamNotEnabled) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) && toolmesh.CodeOf(err) == toolmesh.CodeUnavailable
}

// readLoop reads missing changes until ctx ends, and checks the store for them regularly.
func (v *View) readLoop(ctx context.Context) {
	wait := v.every
	said := outage{log: v.log, begins: "the registry is not read: it is tried again", ends: "the registry is read again"}
	for {
		look := false
		select {
		case <-ctx.Done():
			return
		case <-v.kick:
		case <-time.After(wait):
			look = true
			v.forgetOld()
		}
		err := v.read(ctx, look)
		if ctx.Err() != nil {
			return
		}
		said.note(err)
		wait = v.checkEvery()
		if err != nil || v.Stale() > 0 {
			wait = min(wait, readAgainAfter)
		}
	}
}

// checksFrom is the number of nodes above which each view asks more rarely, so that all views
// together ask at the same pace; checksMost bounds the factor.
const (
	checksFrom = 100
	checksMost = 10
)

// checkEvery is the time until the next question, spread.
func (v *View) checkEvery() time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.leased <= checksFrom {
		return v.every
	}
	d := v.every * time.Duration(min(v.leased/checksFrom, checksMost))
	return d - rand.N(d/4)
}

// read reads the missing changes of every bucket, and the lists that records name.
func (v *View) read(ctx context.Context, look bool) error {
	var errs []error
	for _, f := range v.follows {
		errs = append(errs, v.readBucket(ctx, f, look))
	}
	return errors.Join(append(errs, v.readLists(ctx, look))...)
}

// outage logs the beginning and the end of a series of failures, and each one at debug level.
type outage struct {
	log          *slog.Logger
	begins, ends string
	failing      bool
}

func (o *outage) note(err error) {
	switch {
	case err != nil && o.failing:
		o.log.Debug(o.begins, slog.String("error", err.Error()))
	case err != nil:
		o.log.Warn(o.begins, slog.String("error", err.Error()))
	case o.failing:
		o.log.Info(o.ends)
	}
	o.failing = err != nil
}

const (
	// lagRetries and lagPause bound the wait for a replica that lags behind the leader.
	lagRetries = 10
	lagPause   = 30 * time.Millisecond
)

// readBucket reads the missing changes of a bucket, or all of it. With look it also checks for
// missed last changes, which no later change would show.
func (v *View) readBucket(ctx context.Context, f *follow, look bool) error {
	v.mu.RLock()
	needed := f.needsReading()
	v.mu.RUnlock()
	if !needed && !look {
		return nil
	}
	stream := subjects.KVStream(f.bucket)
	asked, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := v.bus.JetStream().Stream(asked, stream)
	if err != nil {
		hint := "try again"
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			hint = "a node makes it when it starts"
		}
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "bucket %s: %w; %s", f.bucket, err, hint).WithOrigin(toolmesh.OriginMesh)
	}
	info := s.CachedInfo()

	v.mu.Lock()
	now, missing := time.Now(), f.needsReading()
	expired := !f.keep.IsZero() && now.After(f.keep) || !f.again.IsZero() && now.After(f.again)
	if !info.Created.Equal(f.created) || info.State.LastSeq < f.top {
		// The store was wiped, and revisions of the old stream mean nothing. The view keeps its
		// records for a while, as nodes write theirs again.
		if !f.created.IsZero() {
			f.keep = now.Add(v.longestLease() + verifyEvery)
		}
		for key := range f.keys {
			f.keys[key] = keyState{}
		}
		f.created, f.top, f.latest, f.whole = info.Created, 0, time.Time{}, true
		clear(f.ahead)
	}
	whole := f.whole || expired
	tail, count := f.tail, f.count
	f.tail, f.count = false, false
	if !whole && len(f.ahead) == 0 && info.State.LastSeq <= f.top {
		f.whole = count && info.State.Msgs != f.live()
		whole = f.whole
	}
	if !whole && len(f.ahead) == 0 && info.State.LastSeq <= f.top {
		v.mu.Unlock()
		return nil
	}
	from := f.top + 1
	if whole {
		from, f.whole, f.again = 1, false, time.Time{}
	}
	f.reading = missing // a look that finds more, or reads all once more, makes no view stale that was whole
	v.mu.Unlock()
	read, found, err := v.readFrom(ctx, f, stream, from, info.State.LastSeq)
	v.mu.Lock()
	defer v.mu.Unlock()
	f.reading = false
	if err != nil {
		f.whole, f.tail, f.count = f.whole || whole, f.tail || tail, f.count || count
		return err
	}
	if count && !whole && info.State.Msgs != f.live() {
		f.whole = true // some ended unseen, or some have since: all of it tells
		wake.Up(v.kick)
	}
	f.top = max(f.top, read, info.State.LastSeq)
	f.join()
	if len(f.ahead) > 0 {
		// There is still a gap: its messages were overwritten or have expired, or the replica
		// lags. The next question to the leader tells.
		wake.Up(v.kick)
	}
	if whole && time.Now().After(f.keep) {
		f.keep = time.Time{}
		if info.State.Msgs == 0 {
			read = math.MaxUint64 // the leader itself says that nothing is there
		}
		v.drop(f, found, read)
	}
	maps.DeleteFunc(f.keys, func(_ string, k keyState) bool { return k.gone && k.revision <= f.top && len(f.ahead) == 0 })
	return nil
}

// readFrom applies the stored messages from a number on, and returns the last number and the
// keys. want is the leader's last number: it waits a moment for a replica that has less.
func (v *View) readFrom(ctx context.Context, f *follow, stream string, from, want uint64) (read uint64, found map[string]bool, err error) {
	read, found = from-1, make(map[string]bool)
	for try := 0; ; try++ {
		q := store.Query{Stream: stream, Subject: subjects.KVAll(f.bucket), From: read + 1}
		for m, err := range v.bus.Read(ctx, q) {
			if err != nil {
				return read, found, err
			}
			read = m.Seq
			key, ok := subjects.KVKey(f.bucket, m.Subject)
			if !ok {
				continue
			}
			found[key] = true
			v.mu.Lock()
			v.apply(f, change{key: key, seq: m.Seq, at: m.Time, gone: store.Gone(m.Header), data: m.Data})
			if m.Time.After(f.latest) {
				f.latest = m.Time
			}
			v.mu.Unlock()
		}
		if read >= want || try == lagRetries {
			return read, found, nil
		}
		if err := pause(ctx, lagPause); err != nil {
			return read, found, err
		}
	}
}

// drop removes the keys that a whole reading did not find, unless they are later
// than its end. The lock is held.
func (v *View) drop(f *follow, found map[string]bool, read uint64) {
	for key, k := range f.keys {
		if found[key] || k.revision > read {
			continue
		}
		delete(f.keys, key)
		if !k.gone {
			v.applyTo(f.bucket, change{key: key, gone: true})
		}
	}
}
