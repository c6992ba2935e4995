package task

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// ackWait is how long the broker waits for an acknowledgement of a message.
	ackWait = 15 * time.Second
	// askWait is how long a pull request waits for a message, and askLost after how long
	// without an answer the consumer is asked again.
	askWait = 10 * time.Second
	askLost = askWait + 3*time.Second
	// pauseAfterLoss is how long a consumer is not asked after it has lost a request.
	pauseAfterLoss = time.Second
	// tickEvery is how often the loop checks conditions without a signal.
	tickEvery = 100 * time.Millisecond
	// firsts is how many tasks of level 0 may run beyond the slots: each session has few.
	firsts = 16 * levelBasis
	// otherEnd is how often the lanes are asked from their other end.
	otherEnd = 4
	// duesAtOnce is the number of due times that are handled at once.
	duesAtOnce = 64
)

// loop takes queued tasks while there is room.
func (s *Service) loop() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		s.fill()
		if l := s.timed; l != nil && l.free(time.Now()) && s.dues.Load() < duesAtOnce {
			s.ask(l, askWait)
		}
		select {
		case m := <-s.queue.Messages():
			s.arrived(m)
		case <-s.freed:
		case <-ticker.C:
			if s.renewed.Swap(false) {
				for _, l := range s.asked {
					l.asked = time.Time{}
				}
			}
			s.wake()
		case <-s.open.Done():
			s.letGo()
			return
		}
	}
}

// letGo takes no more messages, and has those that were not taken delivered again.
func (s *Service) letGo() {
	s.queue.Close()
	for {
		select {
		case m := <-s.queue.Messages():
			if _, status := s.queue.Read(m); status == "" {
				_ = m.Nak()
			}
		default:
			return
		}
	}
}

// free reports whether a lane may be asked.
func (l *lane) free(now time.Time) bool {
	return now.After(l.paused) && (l.asked.IsZero() || now.Sub(l.asked) > askLost)
}

// fill asks the lanes that there is room for. It asks one after the other for a message that
// exists, so that their order counts. A lane that has none is then asked for the next to come.
func (s *Service) fill() {
	now := time.Now()
	if slices.ContainsFunc(s.lanes, func(l *lane) bool { return !l.asked.IsZero() && l.probe && !l.free(now) }) {
		return // its answer comes first
	}
	lanes := slices.Clone(s.lanes)
	if s.turn%otherEnd == otherEnd-1 {
		slices.Reverse(lanes)
	}
	if i := slices.IndexFunc(lanes, func(l *lane) bool { return l.free(now) && s.room(l) }); i >= 0 {
		s.ask(lanes[i], 0)
	}
}

func (s *Service) ask(l *lane, wait time.Duration) {
	l.asked, l.probe = time.Now(), wait == 0
	if err := s.queue.Ask(l.stream, l.consumer, wait); err != nil {
		l.asked, l.paused = time.Time{}, time.Now().Add(pauseAfterLoss)
	}
}

// room reports whether a task of a lane may be taken. There is more of it for sessions
// that have few tasks, and none for others while calls wait for nodes that have room.
func (s *Service) room(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.level == 0 {
		return len(s.running) < s.slots+firsts
	}
	return len(s.running) < s.slots && len(s.waiting) == 0
}

// arrived takes an answer of a consumer of tasks.
func (s *Service) arrived(m *nats.Msg) {
	name, status := s.queue.Read(m)
	at := slices.IndexFunc(s.asked, func(l *lane) bool { return l.consumer == name })
	if at < 0 {
		return
	}
	l := s.asked[at]
	l.asked = time.Time{}
	switch {
	case status == "" && l == s.timed:
		s.cameDue(m)
	case status == "":
		s.turn++
		s.take(m)
	case status == "404", status == "408":
		if l != s.timed && s.room(l) {
			s.ask(l, askWait)
		}
	default:
		l.paused = time.Now().Add(pauseAfterLoss)
		if status == "503" {
			s.missing.Store(true)
		}
	}
}

// cameDue handles a message of the consumer of schedules in a goroutine of its own.
func (s *Service) cameDue(m *nats.Msg) {
	s.dues.Add(1)
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.base, ackWait)
		defer cancel()
		s.due(ctx, m)
		s.dues.Add(-1)
		wake.Up(s.freed)
	})
}

// take runs the task of a message in a goroutine of its own.
func (s *Service) take(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if err != nil {
		s.log.Warn("the queue of tasks has a message that is not a task", slog.String("subject", m.Subject))
		_ = m.Ack()
		return
	}
	key, err := keyOf(subject.Session, subject.RPC)
	if err != nil {
		_ = m.Ack()
		return
	}
	account := s.account(subject.Session)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[key.Name] != nil {
		return
	}
	r := &run{s: s, session: subject.Session, account: account, id: subject.RPC, key: key.Name, m: m, kept: time.Now(), told: make(chan codec.Progress, 1)}
	r.ctx, r.leave = context.WithCancelCause(s.base)
	s.running[r.key] = r
	s.active[account]++
	delete(s.awaited, r.key) // it is looked at
	s.work.Go(func() {
		defer s.exit(r)
		r.do()
	})
}

// exit forgets a run, once.
func (s *Service) exit(r *run) {
	r.leave(nil)
	s.mu.Lock()
	ends := s.running[r.key] == r
	if ends {
		delete(s.running, r.key)
		if s.active[r.account]--; s.active[r.account] == 0 {
			delete(s.active, r.account)
		}
	}
	s.mu.Unlock()
	if ends {
		s.wake()
		wake.Up(s.freed)
	}
}

// waiter is a run whose call was rejected because no node has room.
type waiter struct {
	account  subjects.SessionID
	priority int
	awake    chan struct{} // closed once it is to try again
}

// await returns true when a run whose call was rejected is to try again, and false if ctx ends
// before.
func (s *Service) await(ctx context.Context, account subjects.SessionID, priority int) bool {
	w := &waiter{account, priority, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.awake:
		return true
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(w)
		return false
	}
}

// wake has one waiter try again: one of the account with the fewest running tasks, and of
// those the one with the highest priority that has waited longest.
func (s *Service) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return
	}
	first := slices.MinFunc(s.waiting, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(s.active[a.account], s.active[b.account]), cmp.Compare(b.priority, a.priority))
	})
	close(first.awake)
	s.forget(first)
}

// forget removes a waiter; s.mu is held.
func (s *Service) forget(w *waiter) {
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
}
