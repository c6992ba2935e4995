package task

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// priorities are the names of priorities in subjects, the highest first.
var priorities = []string{"high", "normal", "low"}

func priorityName(p int) string { return priorities[codec.PriorityHigh-p] }

// levels is how many levels there are: the first holds 8 tasks of a session, each further
// one 8 times as many as all before it, the last one all the rest.
const (
	levels     = 4
	levelBasis = 8
)

// levelOf is the level of a task whose session has that number of tasks in the queue.
func levelOf(queued uint64) int {
	level := 0
	for most := uint64(levelBasis); queued >= most && level < levels-1; most *= levelBasis {
		level++
	}
	return level
}

// levelsKept is how long the count of a session with hundreds of tasks is kept: counting takes
// the broker a moment.
const levelsKept = time.Second

// crowd is the count of a session with hundreds of tasks.
type crowd struct {
	queued uint64
	until  time.Time
}

// level is the level of a session's next task. The tasks of all sessions that were not created
// count together.
func (s *Service) level(ctx context.Context, session subjects.SessionID, priority string) (int, error) {
	account := s.account(session)
	of, err := subjects.QueuedTasks(priority, account)
	if err != nil {
		return 0, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	known := func() bool { // and counts one more; s.mu is held
		c, ok := s.crowds[of]
		if ok = ok && time.Now().Before(c.until); ok {
			s.crowds[of] = crowd{c.queued + 1, c.until}
		}
		return ok
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !known() {
		s.mu.Unlock()
		queued, err := s.queuedOf(ctx, account, of)
		s.mu.Lock()
		switch {
		case err != nil:
			return 0, err
		case int64(queued) > s.stores.records: //nolint:gosec // fewer than 2^63
			return 0, full("the session's share of the queue of tasks") // only tasks that are queued again and again get there
		case known(): // others asked at once
		case account != "" && levelOf(queued) < levels-2:
			delete(s.crowds, of)
			return levelOf(queued), nil
		default:
			if len(s.crowds) >= mostCrowds {
				clear(s.crowds)
			}
			s.crowds[of] = crowd{queued, time.Now().Add(levelsKept)}
		}
	}
	return levelOf(s.crowds[of].queued), nil
}

// queuedOf counts the tasks that an account has in the queue, of the subjects that a filter
// covers.
func (s *Service) queuedOf(ctx context.Context, account subjects.SessionID, of string) (queued uint64, err error) {
	if account != "" {
		found, err := s.bus.Find(ctx, subjects.StreamTasks, store.Lookup{Subject: of, From: 1, Pending: true})
		if err == nil && found[0] != nil {
			queued = found[0].Pending + 1
		}
		return queued, err
	}
	counted, err, _ := s.counts.Do("queue "+of, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
		defer cancel()
		all, err := s.bus.Info(ctx, subjects.StreamTasks, of)
		n := uint64(0)
		if err != nil {
			return n, err
		}
		for subject := range all.State.Subjects {
			if parsed, bad := subjects.Parse(subject); bad == nil && s.account(parsed.Session) == "" {
				n++
			}
		}
		return n, nil
	})
	return counted.(uint64), err //nolint:forcetypeassert // as above
}

// mostCrowds bounds the number of counts that are kept.
const mostCrowds = 1000

// enqueue puts a message into the queue that has a runner read a task. Within two minutes a
// second message for the same revision of the record is dropped. The error is busy if the queue
// is full.
func (s *Service) enqueue(ctx context.Context, t *stored) error {
	priority := priorityName(t.Priority)
	level, err := s.level(ctx, t.session, priority)
	if err != nil {
		return err
	}
	subject, err := subjects.Subject{Kind: subjects.KindTask, Verb: priority, Level: strconv.Itoa(level), Session: t.session, RPC: t.ID}.Build()
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	err = s.bus.Publish(ctx, &nats.Msg{Subject: subject}, jetstream.WithMsgID(messageID(t)))
	if errors.Is(err, store.ErrFull) {
		return full("the queue of tasks")
	}
	return err
}

// messageID is the id of the message that has a runner read a task.
func messageID(t *stored) string { return t.key.Name + "@" + strconv.FormatUint(t.revision, 10) }

func full(what string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeBusy, "%s is full: try again when some tasks have ended", what).
		WithDetail("limit", "tasks").WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// lane is one consumer, as the runner asks it.
type lane struct {
	stream   string
	consumer string
	filter   string
	level    int

	asked  time.Time // when it was asked; zero: no request is open
	probe  bool      // the open request does not wait for a message
	paused time.Time // it is not asked until then
}

// lanes are all of them in the order in which they are asked.
func lanes() []*lane {
	var all []*lane
	for level := range levels {
		for _, priority := range priorities {
			name := strconv.Itoa(level)
			all = append(all, &lane{stream: subjects.StreamTasks, consumer: priority + "-" + name, filter: subjects.TaskLane(priority, name), level: level})
		}
	}
	return all
}

// consumer is a lane's, or that of the schedules that are due.
func consumer(name, filter string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		MaxAckPending: -1, MaxWaiting: 1 << 14,
	}
}
