package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
)

const (
	// pendingReplies may wait to be handed out. They wait only while the process
	// does not run: handing one out never blocks.
	pendingReplies     = 1 << 15
	headerStatus       = "Status"
	statusNoResponders = "503"
)

// inboxes is the one reply inbox of a Bus: a wildcard subscription, made with
// the first use, and the calls behind its tokens. One goroutine takes replies off
// the channel and hands them out, so that the replies of one call stay in order.
type inboxes struct {
	nc       *nats.Conn
	prefix   string // "<inbox>.", the token follows
	messages chan *nats.Msg
	quit     chan struct{} // closed by shut
	pump     sync.WaitGroup

	sends atomic.Uint64

	mu   sync.Mutex
	open map[string]*Inbox // by token
	sub  *nats.Subscription
	err  error // set once no reply can arrive any more
}

// Inbox is where the replies of one call arrive. Make one with [Bus.Open]; its
// methods may be called concurrently.
type Inbox struct {
	in      *inboxes
	subject string
	deliver func(m *nats.Msg, err error)
	sentTo  atomic.Pointer[string] // subject of the last Send
	order   atomic.Uint64          // of that, among all of the connection
	taken   atomic.Bool            // the broker took it: something has come
}

func (in *inboxes) init(nc *nats.Conn) {
	in.nc = nc
	in.open = make(map[string]*Inbox)
	in.quit = make(chan struct{})
	in.prefix = nc.NewInbox() + "."
}

// Open makes an inbox. deliver is called with each message that arrives, in order, also with
// the broker's 503 ([NoResponders]); or once with an error, and then never again, when no reply
// can come: the broker refused the request or the inbox, or the connection was closed. deliver
// runs on a goroutine that serves all calls of the connection: it must not block. Close the
// inbox when the call is over; deliver may run once more while Close returns. Later messages
// are dropped.
func (b *Bus) Open(deliver func(m *nats.Msg, err error)) (*Inbox, error) {
	in := &b.inbox
	// Random, not counted: the node that answers one call must not be able to answer another.
	subject := string(strconv.AppendUint(append(make([]byte, 0, 96), in.prefix...), rand.Uint64(), 36))
	i := &Inbox{in: in, subject: subject, deliver: deliver}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return nil, in.err
	}
	if in.sub == nil {
		messages := make(chan *nats.Msg, pendingReplies)
		sub, err := in.nc.ChanSubscribe(in.prefix+">", messages)
		if err != nil {
			return nil, ErrDisconnected(err)
		}
		in.sub, in.messages = sub, messages
		in.pump.Go(in.run)
	}
	in.open[subject[len(in.prefix):]] = i
	return i, nil
}

// Subject is the reply subject. A dot and further tokens may be put behind it,
// to tell the replies of several messages apart: they arrive here too.
func (i *Inbox) Subject() string { return i.subject }

// Send publishes m with this inbox as its reply subject, which it sets. It fails if m cannot be
// sent now, with started no: unavailable without a connection, even with a reconnect buffer,
// payload_too_large over the broker's limit. If the broker refuses the subject, deliver gets
// permission_denied: m's subject must not change until then.
func (i *Inbox) Send(m *nats.Msg) error {
	i.taken.Store(false)
	i.order.Store(i.in.sends.Add(1))
	i.sentTo.Store(&m.Subject)
	m.Reply = i.subject
	if !i.in.nc.IsConnected() {
		return ErrDisconnected(nil)
	}
	if err := i.in.nc.PublishMsg(m); err != nil {
		return SendError(err, m.Size(), i.in.nc.MaxPayload())
	}
	return nil
}

// Taken records that the broker has accepted the message, even if it refuses the next one to that
// subject.
func (i *Inbox) Taken() { i.taken.Store(true) }

// run is the pump.
func (in *inboxes) run() {
	for {
		select {
		case m := <-in.messages:
			in.receive(m)
		case <-in.quit:
			return
		}
	}
}

// Close ends the inbox. It may be called more than once.
func (i *Inbox) Close() {
	in := i.in
	in.mu.Lock()
	delete(in.open, i.subject[len(in.prefix):])
	in.mu.Unlock()
}

// receive hands one reply to its call.
func (in *inboxes) receive(m *nats.Msg) {
	token, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, in.prefix), ".")
	in.mu.Lock()
	i := in.open[token]
	in.mu.Unlock()
	if i != nil {
		i.Taken()
		i.deliver(m, nil)
	}
}

// fail takes the calls that match out of the table and tells them err.
func (in *inboxes) fail(match func(*Inbox) bool, err error) {
	in.mu.Lock()
	var failed []*Inbox
	for token, i := range in.open {
		if match(i) {
			failed = append(failed, i)
			delete(in.open, token)
		}
	}
	in.mu.Unlock()
	for _, i := range failed {
		i.deliver(nil, err)
	}
}

// shut ends the inbox for good: every call learns err, no new one is opened.
func (in *inboxes) shut(err error) {
	in.mu.Lock()
	sub := in.sub
	in.sub = nil
	if in.err == nil {
		in.err = err
		close(in.quit)
	}
	in.mu.Unlock()
	if sub != nil && !in.nc.IsClosed() {
		_ = sub.Unsubscribe()
	}
	in.fail(func(*Inbox) bool { return true }, err)
}

// NoResponders reports whether m is the broker's message that the request's subject has no
// subscriber.
func NoResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header != nil && m.Header.Get(headerStatus) == statusNoResponders
}

// Collect opens an inbox for at most that many replies; further ones are dropped.
func (b *Bus) Collect(most int) (*Inbox, <-chan Arrival, error) {
	got := make(chan Arrival, most)
	in, err := b.Open(func(m *nats.Msg, err error) {
		select {
		case got <- Arrival{m, err}:
		default:
		}
	})
	return in, got, err
}

// Request sends m and returns the first reply. It sets m.Reply. Without a subscriber the error is
// unavailable with started no and wraps nats.ErrNoResponders; if ctx ends it wraps ctx's
// error.
func (b *Bus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	in, got, err := b.Collect(1)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := in.Send(m); err != nil {
		return nil, err
	}
	select {
	case r := <-got:
		if r.Err != nil {
			return nil, r.Err
		}
		if NoResponders(r.Msg) {
			return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "%s has no subscriber: %w", m.Subject, nats.ErrNoResponders).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
		return r.Msg, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("request to %s: %w", m.Subject, ctx.Err())
	}
}

func (b *Bus) asyncError(sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		b.denied(err.Error())
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		b.log.Error("messages were dropped: this process reads too slowly", slog.String("subject", sub.Subject))
	}
}

// violation matches the broker's text; it is the only form of this error.
var violation = regexp.MustCompile(`Permissions Violation for (Publish to|Publish with Reply of|Subscription to) "([^"]+)"`)

// denied fails the call of which the broker has refused a publish, or all of a refused inbox.
// It refuses publishes one by one and in their order, so its word is about the first one to
// the subject of which nothing has come.
func (b *Bus) denied(text string) {
	found := violation.FindStringSubmatch(text)
	if found == nil {
		return
	}
	in, what, subject := &b.inbox, found[1], found[2]
	refused := toolmesh.Errorf(toolmesh.CodePermissionDenied, "the broker does not let this connection use the subject %s", subject).
		WithOrigin(toolmesh.OriginMesh)
	switch {
	case what == "Publish to":
		var first *Inbox
		in.mu.Lock()
		for _, i := range in.open {
			if to := i.sentTo.Load(); to != nil && *to == subject && !i.taken.Load() && (first == nil || i.order.Load() < first.order.Load()) {
				first = i
			}
		}
		in.mu.Unlock()
		in.fail(func(i *Inbox) bool { return i == first }, refused.WithStarted(toolmesh.StartedNo))
	case what == "Publish with Reply of":
		in.fail(func(i *Inbox) bool { return i.subject == subject }, refused.WithStarted(toolmesh.StartedNo))
	case subject == in.prefix+">":
		b.log.Error("the inbox was refused", slog.String("subject", subject))
		// Requests may have been sent already: only their replies cannot come.
		in.shut(toolmesh.Errorf(toolmesh.CodePermissionDenied,
			"this connection may not subscribe to its reply inbox %s: give it an inbox prefix that it may use, by nats.CustomInboxPrefix", subject).
			WithOrigin(toolmesh.OriginMesh))
	}
}
