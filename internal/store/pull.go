package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/internal/bus"
)

// EnsureConsumer makes a consumer of a stream, or changes the one of its name. Its errors are
// those of [Store.Ensure].
func (st Store) EnsureConsumer(ctx context.Context, stream string, config jetstream.ConsumerConfig) error {
	return st.retry(ctx, "consumer "+config.Durable+" of stream "+stream, func(ctx context.Context) error {
		_, err := st.JetStream().CreateOrUpdateConsumer(ctx, stream, config)
		return err
	})
}

// pulled is how many messages may wait to be read: all of them were requested, so they are few.
const pulled = 1 << 12

// Pulls requests messages of consumers, one at a time. Messages and statuses arrive on one
// channel. Unlike the library's Consume it goes on after a consumer was deleted and made anew,
// and its reader can hand messages back. Its methods may be called concurrently.
type Pulls struct {
	st    Store
	inbox string // with its last dot; a consumer's name follows
	sub   *nats.Subscription
	got   chan *nats.Msg
}

// OpenPulls subscribes. Close it.
func (st Store) OpenPulls() (*Pulls, error) {
	p := &Pulls{st: st, inbox: st.Conn().NewInbox() + ".", got: make(chan *nats.Msg, pulled)}
	var err error
	if p.sub, err = st.Conn().ChanSubscribe(p.inbox+"*", p.got); err != nil {
		return nil, bus.ErrDisconnected(err)
	}
	return p, nil
}

// Close ends the subscription: requested messages go to other processes.
func (p *Pulls) Close() { _ = p.sub.Unsubscribe() }

// Messages is the channel of messages and statuses; see [Pulls.Read].
func (p *Pulls) Messages() <-chan *nats.Msg { return p.got }

// Read returns the consumer of a message. A status says that the consumer's request has no
// message: 404 (none is stored), 408 (none came in its time), 409 or 503 (the request is lost).
func (p *Pulls) Read(m *nats.Msg) (consumer, status string) {
	if name, ok := strings.CutPrefix(m.Subject, p.inbox); ok {
		return name, m.Header.Get(headerStatus)
	}
	meta, err := m.Metadata()
	if err != nil {
		return "", ""
	}
	return meta.Consumer, ""
}

// Ask requests one message of a stream's consumer: one that is stored, or, with a wait above 0,
// the next one within that time.
func (p *Pulls) Ask(stream, consumer string, wait time.Duration) error {
	request := struct {
		Batch   int           `json:"batch"`
		Expires time.Duration `json:"expires,omitempty"`
		NoWait  bool          `json:"no_wait,omitempty"`
	}{1, wait, wait == 0}
	body, _ := json.Marshal(request)
	return p.st.Conn().PublishRequest(p.st.API()+"CONSUMER.MSG.NEXT."+stream+"."+consumer, p.inbox+consumer, body)
}

// Numbers of JetStream's refusals to store a message.
const (
	errStreamStoreFailed = 10077 // no room, among others; the text is the cause
	errNoResources       = 10023
	errScheduleInvalid   = 10189
	errScheduleDisabled  = 10188
)

// Publish stores a message in a stream of the mesh. The errors are those of writing a
// key, [ErrFull] and [ErrSchedule].
func (st Store) Publish(ctx context.Context, m *nats.Msg, options ...jetstream.PublishOpt) error {
	_, err := st.publish(ctx, m, "store "+m.Subject, options...)
	return err
}

// publish stores a message and returns its sequence; what begins its errors.
func (st Store) publish(ctx context.Context, m *nats.Msg, what string, options ...jetstream.PublishOpt) (uint64, error) {
	if !st.Connected() {
		return 0, bus.ErrDisconnected(errNotSent)
	}
	ack, err := st.JetStream().PublishMsg(ctx, m, options...)
	switch {
	case err == nil:
		return ack.Sequence, nil
	case isAPIError(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return 0, fmt.Errorf("%s: %w", what, ErrConflict)
	case isAPIError(err, errScheduleInvalid, errScheduleDisabled):
		return 0, fmt.Errorf("%w: %w", ErrSchedule, err)
	case Full(err):
		return 0, fmt.Errorf("%s: %w: %w", what, ErrFull, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return 0, bus.SendError(err, m.Size(), st.MaxPayload())
	case ctx.Err() != nil && errors.Is(err, ctx.Err()): // not by the bound that the library sets itself
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return 0, apiError(what, err)
}

var (
	// ErrFull: a stream of the mesh has no room.
	ErrFull = errors.New("there is no room")
	// ErrSchedule: the broker does not take a schedule.
	ErrSchedule = errors.New("the broker does not take the schedule")
)

// Full reports whether JetStream's error says that a stream has no room.
func Full(err error) bool {
	return isAPIError(err, errStreamStoreFailed, errNoResources, errStorageExceeded, errMemoryExceeded)
}

// Purge removes the messages of a subject from a stream.
func (st Store) Purge(ctx context.Context, stream, subject string) error {
	return st.purge(ctx, stream, subject, 0)
}

// purge is Purge of the messages before a sequence, if that is not 0.
func (st Store) purge(ctx context.Context, stream, subject string, before uint64) error {
	body, _ := json.Marshal(jetstream.StreamPurgeRequest{Subject: subject, Sequence: before})
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	m, err := st.Request(ctx, &nats.Msg{Subject: st.API() + "STREAM.PURGE." + stream, Data: body})
	if err != nil {
		return apiError("purge "+subject, err)
	}
	return storeError(m)
}
