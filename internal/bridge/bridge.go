package bridge

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// stopWithin is how long calls in flight may take to end.
	stopWithin = 30 * time.Second
	// writeWithin is the time for the program to read the remaining frames.
	writeWithin = 5 * time.Second
	// mostRequests is the max number of waiting requests about tools.
	mostRequests = 64
)

// Options adjusts a [Bridge].
type Options struct {
	// Session is the session of frames that name none. Defaults to "default".
	Session subjects.SessionID
	// Node is the id of the program's node. Defaults to "bridge" and a random suffix.
	Node subjects.NodeID
	// Slots, MaxTimeout and Labels are those of [host.Options].
	Slots      int
	MaxTimeout time.Duration
	Labels     map[string]string
	// Version is shown to people. Defaults to none.
	Version string
	// MessagePack encodes frames in MessagePack. Defaults to JSON.
	MessagePack bool
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Bridge speaks with one program. It runs once.
type Bridge struct {
	opts   Options
	log    *slog.Logger
	bus    *bus.Bus
	client *client.Client
	pipe   *pipe

	base     context.Context // ends with the bridge
	stop     context.CancelCauseFunc
	requests chan *frame   // about tools
	drained  chan struct{} // closed by drain, at the program's request
	drain    func()
	gone     chan struct{} // closed when the program has ended
	hosted   chan struct{} // closed when the host exists
	idle     chan struct{} // capacity 1: the program's last call was answered

	hosting sync.Mutex // guards host; held while it starts
	host    *host.Host // nil until there is a tool

	mu       sync.Mutex // guards the fields below
	offered  map[place]map[subjects.ToolID]*tool.Descriptor
	serving  map[string]*served
	calls    map[string]*own
	busy     int  // unanswered calls of the program
	draining bool // refuse new calls, except nested ones
	left     bool // gone is closed
	broken   int  // calls served at that time
}

// New makes a bridge on a connection of the mesh, which it leaves open. It sends nothing yet. The
// error is invalid_request for invalid options.
func New(b *bus.Bus, opts *Options) (*Bridge, error) {
	o := *opts
	o.Session = cmp.Or(o.Session, subjects.DefaultSession)
	o.Node = cmp.Or(o.Node, subjects.NodeID("bridge-"+uuid.NewString()[:8]))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	c, err := client.NewOn(b, &client.Options{Session: o.Session, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	drained := make(chan struct{})
	return &Bridge{
		opts: o, log: o.Logger, bus: b, client: c,
		requests: make(chan *frame, mostRequests), drained: drained, drain: sync.OnceFunc(func() { close(drained) }), gone: make(chan struct{}),
		hosted: make(chan struct{}), idle: make(chan struct{}, 1),
		offered: make(map[place]map[subjects.ToolID]*tool.Descriptor),
		serving: make(map[string]*served), calls: make(map[string]*own),
	}, nil
}

// Run exchanges frames with the program, which writes in and reads out, until ctx ends, the program
// drains the bridge or ends, or another process takes over the node. Then it ends running calls as
// docs/bridge.md describes, with a drain of at most half a minute, and writes nothing to out
// afterwards. It reads in until its end and drops the rest. The error is worker_crashed if the
// program ended with served calls, protocol_error for input that is not frames, or the loss of the
// node.
func (b *Bridge) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	b.base, b.stop = context.WithCancelCause(context.Background())
	defer b.stop(nil)
	b.pipe = newPipe(out, b.opts.MessagePack)
	written, read := make(chan error, 1), make(chan error, 1)
	go func() { // ends with the pipe, or with the process if the program does not read
		err := b.pipe.run()
		if err != nil {
			b.leaves()
		}
		written <- err
	}()
	var requests sync.WaitGroup
	requests.Go(b.answerRequests)
	b.pipe.push(object("type", "ready", "protocol", int64(1), "node", string(b.opts.Node), "session_id", string(b.opts.Session), "max_payload", b.bus.MaxPayload()))
	go func() { // ends with in
		read <- b.read(in)
		b.leaves()
	}()
	err := b.wait(ctx, read)
	b.end(&requests)
	b.client.Close()
	b.pipe.close()
	select {
	case <-written:
	case <-time.After(writeWithin):
	}
	return err
}

// wait returns the reason once the bridge must end.
func (b *Bridge) wait(ctx context.Context, read <-chan error) error {
	hosted := b.hosted
	var lost <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			b.log.Info("draining: signalled")
			return nil
		case <-b.drained:
			b.log.Info("draining: the program asks for it")
			return nil
		case <-hosted:
			lost, hosted = b.host.Lost(), nil
		case <-lost:
			return b.host.Err()
		case <-b.gone:
			select {
			case err := <-read:
				if err != nil {
					return err
				}
			default: // the program has stopped reading
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.broken > 0 {
				return toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "the program left %d calls that it was serving", b.broken).WithOrigin(toolmesh.OriginWorker)
			}
			return nil
		}
	}
}

// end drains served calls, waits for the program's calls, and ends the rest.
func (b *Bridge) end(requests *sync.WaitGroup) {
	b.mu.Lock()
	b.draining = true
	b.mu.Unlock()
	b.pipe.push([]byte(`{"type":"draining"}`))
	within, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	b.hosting.Lock() // no node starts from now on
	h := b.host
	b.hosting.Unlock()
	if h != nil {
		b.log.Debug("the node ends", slog.String("node", string(h.Node())))
		if err := b.stopNode(within, h); err != nil {
			b.log.Warn("the node did not end cleanly", slog.String("error", err.Error()))
		}
	}
	b.awaitCalls(within, b.gone)
	b.stop(errEnded)
	within, cancel = context.WithTimeout(context.Background(), writeWithin)
	defer cancel()
	b.awaitCalls(within, nil)
	requests.Wait()
}

// awaitCalls waits until the program's calls are answered, at most until ctx ends or enough is
// closed.
func (b *Bridge) awaitCalls(ctx context.Context, enough <-chan struct{}) {
	for {
		b.mu.Lock()
		busy := b.busy
		b.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-b.idle:
		case <-enough:
			return
		case <-ctx.Done():
			return
		}
	}
}

// stopNode stops the node. If the program has ended, its tools are removed first.
func (b *Bridge) stopNode(ctx context.Context, h *host.Host) error {
	var errs []error
	select {
	case <-b.gone:
		b.mu.Lock()
		places := slices.Collect(maps.Keys(b.offered))
		b.mu.Unlock()
		for _, p := range places {
			errs = append(errs, h.Withdraw(ctx, p.index, p.session))
		}
	default:
	}
	return errors.Join(append(errs, h.Stop(ctx))...)
}

// leaves records that the program has ended: calls that it was serving have failed.
func (b *Bridge) leaves() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return
	}
	b.left = true
	b.broken = len(b.serving)
	for _, c := range b.calls {
		c.cancel(errEnded)
	}
	close(b.gone)
	b.pipe.close()
}

// read handles the program's frames until they end.
func (b *Bridge) read(in io.Reader) error {
	r := reader{from: bufio.NewReaderSize(in, 1<<16), packed: b.opts.MessagePack}
	for {
		body, err := r.next()
		switch {
		case err == io.EOF: //nolint:errorlint // our own reader's
			return nil
		case errors.Is(err, errFraming):
			b.refuse(nil, err)
			return err
		}
		f, bad := parseFrame(body)
		if err != nil {
			bad = err
		}
		b.take(&f, bad)
	}
}

// take handles a frame. bad is its fault; an unreadable frame f has its readable part.
func (b *Bridge) take(f *frame, bad error) {
	switch f.kind {
	case typeResponse, typeChunk:
		b.answered(f, bad)
		return
	case typeCall, typeStream, typeDescribe, typeTask:
		b.call(f, bad)
		return
	case typeBatch:
		b.batch(f, bad)
		return
	}
	if bad == nil {
		switch f.kind {
		case typeProgress:
			if bad = b.progress(f); bad == nil {
				return
			}
		case typeCancel:
			b.cancel(f)
			return
		case typeCredit:
			b.credit(f)
			return
		case typeInit, typeRemove:
			select {
			case b.requests <- f:
			default:
				b.refuse(f.RPCID, toolmesh.Errorf(toolmesh.CodeBusy, "%d requests about tools wait already: send this one again when some are answered", mostRequests).WithStarted(toolmesh.StartedNo))
			}
			return
		case typeDrain:
			b.drain()
			return
		case typeError: // the program could not read one of ours
			b.log.Warn("the program refused a frame", slog.String("error", string(f.Error)))
			return
		case "":
			bad = invalid("the frame has no type")
		default:
			bad = invalid("there is no type %q", f.kind)
		}
	}
	b.refuse(f.RPCID, bad)
}

// refuse reports a frame that the bridge could not take.
func (b *Bridge) refuse(id []byte, err error) {
	var bad *toolmesh.Error
	if !errors.As(err, &bad) {
		bad = invalid("%w", err)
	}
	if _, ok := nameOf(id); !ok {
		id = nil
	}
	_ = b.pipe.put(b.base, object("type", typeError, "rpc_id", id, "error", bad))
}

// answerRequests answers requests about tools in order.
func (b *Bridge) answerRequests() {
	for {
		select {
		case f := <-b.requests:
			b.request(f)
		case <-b.base.Done():
			return
		}
	}
}
