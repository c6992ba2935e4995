package registry

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// follow is how far one bucket is known. The stream numbers its messages without
// holes, so a hole in what is heard is something that was missed. It is guarded
// by the view's lock.
type follow struct {
	bucket string
	prefix string // of the republished subjects, the key follows

	keys    map[string]keyState
	top     uint64    // everything up to here is known
	from    uint64    // what is heard behind a hole: from ..
	ahead   uint64    // .. to here; 0 = nothing
	latest  time.Time // of what was heard, by the broker's clock
	created time.Time // of the stream; another one means that it was made anew
	whole   bool      // read all of it, not only what is missing
	spare   time.Time // until then a reading forgets nothing; zero = never
	round   uint64    // of readings, to see which keys one did not find
}

// keyState is the last revision of a key, also of one that is gone: what is
// still being read must not bring it back.
type keyState struct {
	revision uint64
	gone     bool
	round    uint64
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
		keys: make(map[string]keyState), whole: true,
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
	return change{key: key, seq: seq, at: at, gone: bus.Gone(m.Header), data: m.Data}, true
}

// heard records the sequence of a change and reports whether something is missing.
func (f *follow) heard(seq uint64, at time.Time) (missing bool) {
	newer := at.After(f.latest)
	if newer {
		f.latest = at
	}
	switch {
	case seq <= f.top:
		// Either again, or the stream was made anew and counts from 1.
		if newer && !f.created.IsZero() {
			f.whole = true
			return true
		}
		return false
	case seq == f.top+1:
		f.top = seq
	case f.ahead != 0 && seq == f.ahead+1:
		f.ahead = seq
	case f.ahead == 0 || seq > f.ahead:
		f.from, f.ahead = seq, seq
	}
	f.join()
	return f.ahead != 0
}

// join ends a hole that is filled.
func (f *follow) join() {
	if f.ahead != 0 && f.from <= f.top+1 {
		f.top = max(f.top, f.ahead)
		f.from, f.ahead = 0, 0
	}
}

func (f *follow) needsReading() bool { return f.whole || f.ahead != 0 }

// accept reports whether a change is later than what is known of its key, and
// records it.
func (f *follow) accept(c change) bool {
	k, known := f.keys[c.key]
	if known && c.seq <= k.revision {
		if c.seq == k.revision {
			k.round = f.round
			f.keys[c.key] = k
		}
		return false
	}
	f.keys[c.key] = keyState{revision: c.seq, gone: c.gone, round: f.round}
	return true
}

// readLoop reads what is missing. failed gets the error of the first reading.
func (v *View) readLoop(failed chan<- error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	v.wg.Go(func() {
		select {
		case <-v.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	check := time.NewTimer(v.every)
	defer check.Stop()
	first, began := true, time.Now()
	failing := make(map[string]bool) // buckets of which it has been said
	for {
		all := false
		select {
		case <-v.stop:
			return
		case <-v.kick:
		case <-check.C:
			all = true
		}
		wait := v.every
		for _, bucket := range v.buckets {
			if err := v.readBucket(ctx, v.follows[bucket], all); err != nil {
				if ctx.Err() != nil {
					return
				}
				if first && (!leaderless(err) || time.Since(began) > openTimeout) {
					failed <- err
					return
				}
				if failing[bucket] {
					v.log.Debug("the registry is still not read", slog.String("bucket", bucket), slog.String("error", err.Error()))
				} else {
					failing[bucket] = true
					v.log.Warn("the registry is not read: it is tried again", slog.String("bucket", bucket), slog.String("error", err.Error()))
				}
				wait = readAgainAfter
			} else if failing[bucket] {
				delete(failing, bucket)
				v.log.Info("the registry is read again", slog.String("bucket", bucket))
			}
		}
		v.mu.Lock()
		whole := v.whole()
		v.mu.Unlock()
		if whole && first {
			first = false
			close(v.ready)
		}
		if !whole {
			wait = min(wait, readAgainAfter)
		}
		check.Reset(wait)
	}
}

// openTimeout is how long a view may be in opening while its buckets cannot be
// read: in a cluster each new one is without a leader for a while.
const openTimeout = 30 * time.Second

// leaderless reports whether a reading failed for want of a leader, as far as
// that can be told: what is missing for good is told at once.
func leaderless(err error) bool {
	return !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrJetStreamNotEnabled) &&
		!errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) && toolmesh.CodeOf(err) == toolmesh.CodeUnavailable
}

const (
	// lagRetries and lagPause are how long a replica is given that does not have
	// yet what the leader has.
	lagRetries = 10
	lagPause   = 30 * time.Millisecond
)

// readBucket reads what is missing of a bucket, or all of it. With look it also
// asks whether the end was missed, which nothing else would tell.
func (v *View) readBucket(ctx context.Context, f *follow, look bool) error {
	v.mu.RLock()
	needed := f.needsReading() || !f.spare.IsZero() && time.Now().After(f.spare)
	v.mu.RUnlock()
	if !needed && !look {
		return nil
	}
	stream := subjects.KVStream(f.bucket)
	asked, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := v.bus.JetStream().Stream(asked, stream)
	if err != nil {
		code, hint := toolmesh.CodeUnavailable, "try again"
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			hint = "a node makes it when it starts"
		}
		return toolmesh.Errorf(code, "bucket %s: %w; %s", f.bucket, err, hint).WithOrigin(toolmesh.OriginMesh)
	}
	info := s.CachedInfo()

	v.mu.Lock()
	anew := !info.Created.Equal(f.created) || info.State.LastSeq < f.top
	if anew {
		// Revisions of the old stream mean nothing. What is known stays for a while:
		// somebody wiped the store, and nodes write their records again.
		if !f.created.IsZero() {
			f.spare = time.Now().Add(LeaseTTL + verifyEvery)
		}
		for key := range f.keys {
			f.keys[key] = keyState{}
		}
		f.created, f.top, f.from, f.ahead, f.latest = info.Created, 0, 0, 0, time.Time{}
	}
	whole := f.whole || anew || !f.spare.IsZero() && time.Now().After(f.spare)
	from := f.top + 1
	if whole {
		from = 1
		f.whole = false
		f.round++
	}
	round := f.round
	done := !whole && f.ahead == 0 && info.State.LastSeq <= f.top
	v.mu.Unlock()
	if done {
		return nil
	}
	read, err := v.readFrom(ctx, f, stream, from, info.State.LastSeq)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		f.whole = f.whole || whole
		return err
	}
	f.top = max(f.top, read, info.State.LastSeq)
	f.join()
	if f.ahead != 0 && f.from > f.top+1 {
		// Still a hole: what is in it was overwritten or has expired, or the
		// replica lags. The next look at the leader tells.
		wake(v.kick)
	}
	if now := time.Now(); whole && now.After(f.spare) {
		f.spare = time.Time{}
		if info.State.Msgs == 0 {
			read = math.MaxUint64 // the leader itself says that nothing is there
		}
		v.forget(f, round, read)
	}
	for key, k := range f.keys {
		if k.gone && k.revision <= f.top && f.ahead == 0 {
			delete(f.keys, key)
		}
	}
	return nil
}

// readFrom applies what is stored from a sequence on, and returns the last one
// that it got. want is what the leader has: a replica that has less is given a moment.
func (v *View) readFrom(ctx context.Context, f *follow, stream string, from, want uint64) (read uint64, err error) {
	read = from - 1
	for try := 0; ; try++ {
		q := bus.Query{Stream: stream, Subject: subjects.KVAll(f.bucket), From: read + 1}
		for m, err := range v.bus.Read(ctx, q) {
			if err != nil {
				return read, err
			}
			read = m.Seq
			key, ok := subjects.KVKey(f.bucket, m.Subject)
			if !ok {
				continue
			}
			v.mu.Lock()
			v.apply(f, change{key: key, seq: m.Seq, at: m.Time, gone: bus.Gone(m.Header), data: m.Data})
			if m.Time.After(f.latest) {
				f.latest = m.Time
			}
			v.mu.Unlock()
		}
		if read >= want || try == lagRetries {
			return read, nil
		}
		if err := pause(ctx, lagPause); err != nil {
			return read, err
		}
	}
}

// forget drops the keys that a whole reading did not find, unless they are later
// than its end. The lock is held.
func (v *View) forget(f *follow, round, read uint64) {
	for key, k := range f.keys {
		if k.round == round || k.revision > read {
			continue
		}
		delete(f.keys, key)
		if !k.gone {
			v.applyTo(f.bucket, change{key: key, gone: true})
		}
	}
}
