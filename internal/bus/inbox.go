package bus

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	tokenLen           = 11 // 64 random bits in base64url, whose alphabet subjects take
	headerStatus       = "Status"
	statusNoResponders = "503"
)

// inboxes is the one reply inbox of a Bus: a wildcard subscription, made with
// the first use, and the calls behind its tokens. One goroutine, the pump, takes replies off the
// channel and hands them out, so that the replies of one call stay in order.
type inboxes struct {
	nc       *nats.Conn
	prefix   string // "<inbox>.", the token follows
	dropped  atomic.Uint64
	messages chan *nats.Msg
	quit     chan struct{} // closed by shut
	pump     sync.WaitGroup

	mu   sync.Mutex
	open map[uint64]*Inbox
	sub  *nats.Subscription
	err  error // set once no reply can arrive any more
}

// Inbox is where the replies of one call arrive. Make one with [Bus.Open]; its
// methods may be called concurrently.
type Inbox struct {
	in      *inboxes
	token   uint64
	subject string
	to      Receiver
	sentTo  atomic.Pointer[string] // subject of the last Send
}

// Receiver is what an inbox hands replies to.
type Receiver interface {
	// Receive is called as the function of [Bus.Open] is.
	Receive(m *nats.Msg, err error)
}

type receiverFunc func(m *nats.Msg, err error)

func (f receiverFunc) Receive(m *nats.Msg, err error) { f(m, err) }

func (in *inboxes) init(nc *nats.Conn) {
	in.nc = nc
	in.open = make(map[uint64]*Inbox)
	in.quit = make(chan struct{})
	in.prefix = nc.NewInbox() + "."
}

// Open makes an inbox. deliver is called with each message that arrives, in
// order, also the broker's 503 ([NoResponders]); or once with an error, and then
// never again, when no reply can come: the broker refused the request or the
// inbox, or the connection was closed. deliver runs on a goroutine that serves
// all calls of the connection: it must not block. Close the inbox when the call
// is over; deliver may run once more while Close returns. What arrives later is
// dropped and counted.
func (b *Bus) Open(deliver func(m *nats.Msg, err error)) (*Inbox, error) {
	i := &Inbox{}
	if err := b.OpenInto(i, receiverFunc(deliver)); err != nil {
		return nil, err
	}
	return i, nil
}

// OpenInto is [Bus.Open] for an inbox that is part of what it belongs to: i is
// made new and must not be copied afterwards.
func (b *Bus) OpenInto(i *Inbox, to Receiver) error {
	in := &b.inbox
	i.in, i.to = in, to
	var raw [8]byte
	var room [128]byte
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return in.err
	}
	if in.sub == nil {
		messages := make(chan *nats.Msg, pendingReplies)
		sub, err := in.nc.ChanSubscribe(in.prefix+">", messages)
		if err != nil {
			return errDisconnected(err)
		}
		in.sub, in.messages = sub, messages
		in.pump.Go(in.run)
	}
	for {
		// Random, not counted: the node that answers one call must not be able to answer another.
		i.token = rand.Uint64()
		if _, taken := in.open[i.token]; !taken {
			break
		}
	}
	binary.BigEndian.PutUint64(raw[:], i.token)
	i.subject = string(base64.RawURLEncoding.AppendEncode(append(room[:0], in.prefix...), raw[:]))
	in.open[i.token] = i
	return nil
}

// Subject is the reply subject. A dot and further tokens may be put behind it,
// to tell the replies of several messages apart: they arrive here too.
func (i *Inbox) Subject() string { return i.subject }

// Send publishes m with this inbox as its reply subject, which it sets. It
// refuses what cannot leave now, with started no: unavailable without a
// connection, also where the connection has a reconnect buffer,
// payload_too_large over the broker's limit. If the broker refuses the subject,
// deliver gets permission_denied: m's subject must stay as it is until then.
func (i *Inbox) Send(m *nats.Msg) error {
	i.sentTo.Store(&m.Subject)
	m.Reply = i.subject
	if !i.in.nc.IsConnected() {
		return errDisconnected(nil)
	}
	if err := i.in.nc.PublishMsg(m); err != nil {
		return sendError(err, m.Size(), i.in.nc.MaxPayload())
	}
	return nil
}

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
	delete(in.open, i.token)
	in.mu.Unlock()
}

// receive hands one reply to its call.
func (in *inboxes) receive(m *nats.Msg) {
	text, ok := strings.CutPrefix(m.Subject, in.prefix)
	var raw [9]byte
	if !ok || len(text) < tokenLen || len(text) > tokenLen && text[tokenLen] != '.' {
		in.dropped.Add(1)
		return
	}
	text = text[:tokenLen]
	if _, err := base64.RawURLEncoding.Decode(raw[:], []byte(text)); err != nil {
		in.dropped.Add(1)
		return
	}
	in.mu.Lock()
	i := in.open[binary.BigEndian.Uint64(raw[:8])]
	in.mu.Unlock()
	if i == nil {
		in.dropped.Add(1)
		return
	}
	i.to.Receive(m, nil)
}

// fail takes the calls that match out of the table and tells them err.
func (in *inboxes) fail(match func(*Inbox) bool, err error) (n int) {
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
		i.to.Receive(nil, err)
	}
	return len(failed)
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

// DroppedReplies counts the replies that nobody waited for any more.
func (b *Bus) DroppedReplies() uint64 { return b.inbox.dropped.Load() }

// OpenInboxes counts the calls that wait for replies.
func (b *Bus) OpenInboxes() int {
	b.inbox.mu.Lock()
	defer b.inbox.mu.Unlock()
	return len(b.inbox.open)
}

// NoResponders reports whether m is the broker's word that nobody subscribes the
// subject of the request.
func NoResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header != nil && m.Header.Get(headerStatus) == statusNoResponders
}

type reply struct {
	msg *nats.Msg
	err error
}

// Request sends m and returns the first reply. It sets m.Reply. Nobody there is
// unavailable with started no and wraps nats.ErrNoResponders; the end of ctx is
// its error, wrapped.
func (b *Bus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	got := make(chan reply, 1)
	in, err := b.Open(func(m *nats.Msg, err error) {
		select {
		case got <- reply{m, err}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := in.Send(m); err != nil {
		return nil, err
	}
	select {
	case r := <-got:
		if r.err != nil {
			return nil, r.err
		}
		if NoResponders(r.msg) {
			return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "nobody answers %s: %w", m.Subject, nats.ErrNoResponders).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
		return r.msg, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("request to %s: %w", m.Subject, ctx.Err())
	}
}

// Denial says what the broker refused this connection.
type Denial struct {
	// Subscribe is true for a subscription, false for a publish.
	Subscribe bool
	// Subject is what was published or subscribed, as the broker quotes it; empty
	// if only Reply is known.
	Subject string
	// Reply is the reply subject that was refused, with a publish only.
	Reply string
	// Err is permission_denied with the broker's words.
	Err *toolmesh.Error
}

func (b *Bus) asyncError(sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		if d, ok := parseDenial(err); ok {
			b.denied(d)
		}
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		subject := sub.Subject
		b.log.Error("messages dropped: the process does not keep up", slog.String("subject", subject))
		b.callListeners(func(l listener) {
			if l.slow != nil {
				l.slow(subject)
			}
		})
	}
}

func (b *Bus) denied(d Denial) {
	switch in := &b.inbox; {
	case d.Subscribe:
		if d.Subject == in.prefix+">" {
			b.log.Error("the inbox was refused", slog.String("subject", d.Subject))
			e := toolmesh.Errorf(toolmesh.CodePermissionDenied,
				"this connection may not subscribe to its reply inbox %s: give it an inbox prefix that it may use, by nats.CustomInboxPrefix", d.Subject).
				WithOrigin(toolmesh.OriginMesh)
			// Requests may have left already: a reply is what cannot come.
			in.shut(e)
		}
	case d.Reply != "":
		in.fail(func(i *Inbox) bool { return i.subject == d.Reply }, d.Err)
	default:
		in.fail(func(i *Inbox) bool { to := i.sentTo.Load(); return to != nil && *to == d.Subject }, d.Err)
	}
	b.callListeners(func(l listener) {
		if l.denied != nil {
			l.denied(d)
		}
	})
}

// parseDenial reads the broker's text; there is no other form of it.
func parseDenial(err error) (Denial, bool) {
	_, text, ok := strings.Cut(err.Error(), "Permissions Violation for ")
	if !ok {
		return Denial{}, false
	}
	what, rest, ok := strings.Cut(text, `"`)
	if !ok {
		return Denial{}, false
	}
	subject, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return Denial{}, false
	}
	d := Denial{}
	verb := "publish to"
	switch strings.TrimSpace(what) {
	case "Publish to":
		d.Subject = subject
	case "Publish with Reply of":
		d.Reply, verb = subject, "use the reply subject"
	case "Subscription to":
		d.Subject, d.Subscribe, verb = subject, true, "subscribe to"
	default:
		return Denial{}, false
	}
	d.Err = toolmesh.Errorf(toolmesh.CodePermissionDenied, "the broker does not let this connection %s %s", verb, subject).
		WithOrigin(toolmesh.OriginMesh)
	if !d.Subscribe {
		d.Err = d.Err.WithStarted(toolmesh.StartedNo)
	}
	return d, true
}
