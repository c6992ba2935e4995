package chunks

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// How a writer waits for the store.
const (
	windowItems = 512     // chunks sent and not yet acknowledged
	windowBytes = 4 << 20 // and their bytes
	// firstWait is how long the first chunk may take: until then nothing of the
	// stream exists, and its caller can be told so. Leaders are elected in less:
	// 4 to 9 s where one is lost.
	firstWait = 10 * time.Second
	// resendAfter is how long an acknowledgement may take before the writer goes
	// back to the first chunk without one.
	resendAfter = 2 * time.Second
	// unheardAfter is the same if the broker has answered that the stream has no listener.
	unheardAfter = 250 * time.Millisecond
	// giveUpAfter is how long the store may make no progress at all.
	giveUpAfter = 30 * time.Second
)

// Error numbers of JetStream that nats.go has no name for.
const (
	errDuplicateInProcess = 10158
	// storeHeaders is the max size of the headers that the store adds when it republishes a chunk.
	storeHeaders = 512
	// storeFrame is the size of a stored message besides its subject, headers and body.
	storeFrame = 34
)

// Writer stores the chunks of one call, in order, with a bounded number of them
// unacknowledged. Write and Flush are for one goroutine; Tick, High and Close
// may be called from any.
type Writer struct {
	bus     store.Store
	subject string
	rpc     subjects.RPCID
	boot    subjects.BootID
	first   string // message id of the first chunk
	opts    WriterOptions
	inbox   *bus.Inbox
	changed chan struct{} // capacity 1: something below changed

	mu       sync.Mutex
	window   []pending // from base on, in order of Seq
	bytes    int
	base     int64 // Seq of window[0]
	progress time.Time
	resent   time.Time
	link     uint64 // the connection, counted, on which the window was sent
	doubt    bool   // the first chunk was sent again and refused: by itself?
	unheard  bool   // the stream had no listener when the window was sent: an election, or it was removed
	err      error
	closed   bool
}

type pending struct {
	chunk  codec.Chunk
	header codec.Header
	body   []byte
	size   int // in the store
	acked  bool
}

// WriterOptions adjusts a [Writer].
type WriterOptions struct {
	// Epoch of the session; empty for one that was not created.
	Epoch string
	// Admit is called with the bytes that each item takes in the store, before it is
	// sent; an error refuses it. Defaults to nothing.
	Admit func(size int) error
	// Stored is called with each chunk and its bytes in the store once it and all before
	// it are stored, in order, from the goroutine that serves the process's inbox: it must
	// not block. Defaults to nothing.
	Stored func(c codec.Chunk, size int)
}

// NewWriter prepares to store a call's chunks. boot tells this execution from
// another one under the same rpc_id. Close it.
func NewWriter(b *bus.Bus, session subjects.SessionID, rpc subjects.RPCID, boot subjects.BootID, opts WriterOptions) (*Writer, error) {
	subject, err := subjects.Chunks(session, rpc)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the stream cannot be named: %w", err)
	}
	w := &Writer{
		bus: store.Of(b), opts: opts, subject: subject, rpc: rpc, boot: boot, base: 1, link: b.State().Generation, changed: make(chan struct{}, 1),
	}
	if w.inbox, err = b.Open(w.deliver); err != nil {
		return nil, err
	}
	return w, nil
}

// Close drops the chunks that are not acknowledged.
func (w *Writer) Close() {
	w.inbox.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.window = nil
	wake.Up(w.changed)
}

// High is the Seq up to which everything is stored; 0 before the first chunk.
func (w *Writer) High() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.base - 1
}

// Write sends a chunk to the store. The first one is acknowledged before Write
// returns; later ones wait only while the window is full. The errors are
// unavailable, payload_too_large, that of [WriterOptions.Admit], and
// invalid_request if another execution stores under the same rpc_id.
func (w *Writer) Write(ctx context.Context, c codec.Chunk) error {
	header, body := c.Encode(w.rpc, w.opts.Epoch)
	p := pending{chunk: c, header: header, body: body}
	first := c.Seq == 1
	if first {
		// Another execution under the same rpc_id is refused; by the id the writer
		// knows its own when that was sent twice.
		w.first = uuid.NewString()
		header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
		header.Set(jetstream.MsgIDHeader, w.first)
		header.Set(codec.HeaderBoot, string(w.boot))
	}
	headers := headerSize(header)
	p.size = len(w.subject) + headers + len(body) + storeFrame
	headers += storeHeaders
	if limit := w.bus.MaxPayload(); limit > 0 && int64(len(body)+headers) > limit {
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "item %d of the stream has %d bytes and %d of headers, the broker takes %d: yield less at once", c.Seq, len(body), headers, limit).
			WithDetail("limit", limit).WithDetail("size", len(body)).WithOrigin(toolmesh.OriginAgent)
	}
	if w.opts.Admit != nil && !c.Terminal() {
		if err := w.opts.Admit(p.size); err != nil {
			return err
		}
	}
	for {
		w.mu.Lock()
		if w.err != nil || w.closed {
			defer w.mu.Unlock()
			return w.failure()
		}
		if len(w.window) == 0 || len(w.window) < windowItems && w.bytes+len(body) <= windowBytes {
			break
		}
		w.mu.Unlock()
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
	if len(w.window) == 0 {
		w.progress = time.Now()
	}
	w.window = append(w.window, p)
	w.bytes += len(body)
	if w.bus.State().Generation != w.link {
		w.again(time.Now()) // messages on the old connection may be lost
	} else {
		w.send(&w.window[len(w.window)-1])
	}
	w.mu.Unlock()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, firstWait,
		toolmesh.Errorf(toolmesh.CodeUnavailable, "the chunk store did not take the stream's first item within %v: JetStream or the stream %s is missing, has no leader, or has found the server's disk full (then make room and restart the server)",
			firstWait, subjects.StreamChunks).WithOrigin(toolmesh.OriginMesh))
	defer cancel()
	return w.Flush(ctx)
}

func headerSize(h codec.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for k, values := range h {
		for _, v := range values {
			n += len(k) + len(v) + len(": \r\n")
		}
	}
	return n
}

// Flush waits until everything written is stored.
func (w *Writer) Flush(ctx context.Context) error {
	for {
		w.mu.Lock()
		switch {
		case w.err != nil || w.closed:
			defer w.mu.Unlock()
			return w.failure()
		case len(w.window) == 0:
			w.mu.Unlock()
			return nil
		}
		doubt := w.doubt
		w.doubt = false
		w.mu.Unlock()
		if doubt {
			w.identify(ctx)
			continue
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// identify reads the writer of the stored first chunk. If the read fails, the next copy is refused
// again, and identify runs again.
func (w *Writer) identify(ctx context.Context) {
	found, err := w.bus.Find(ctx, subjects.StreamChunks, store.Lookup{Subject: w.subject, From: 1})
	if err != nil || found[0] == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed || w.err != nil || w.base > 1 || len(w.window) == 0:
	case found[0].Header.Get(jetstream.MsgIDHeader) == w.first:
		w.acknowledged(1)
	default:
		w.fail(w.taken())
	}
}

func (w *Writer) taken() error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "rpc_id %q already names a stream: use a new one", w.rpc).WithOrigin(toolmesh.OriginAgent)
}

func (w *Writer) failure() error {
	if w.err != nil {
		return w.err
	}
	return toolmesh.Errorf(toolmesh.CodeCancelled, "the stream was closed")
}

func (w *Writer) wait(ctx context.Context) error {
	timer := time.NewTimer(unheardAfter)
	defer timer.Stop()
	select {
	case <-w.changed:
		return nil
	case <-timer.C:
		w.Tick()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send publishes one chunk; w.mu is held. Tick resends one that cannot be sent now.
func (w *Writer) send(p *pending) {
	msg := &nats.Msg{
		Subject: w.subject, Header: nats.Header(p.header), Data: p.body,
		Reply: w.inbox.Subject() + "." + strconv.FormatInt(p.chunk.Seq, 10),
	}
	if !w.bus.Connected() {
		return
	}
	_ = w.bus.Conn().PublishMsg(msg)
}

// Tick goes back to the first chunk without an acknowledgement when the store
// has been silent for too long, and gives up when it stays so. The host calls it
// a few times a second.
func (w *Writer) Tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.window) == 0 || w.err != nil || w.closed {
		return
	}
	now := time.Now()
	if now.Sub(w.progress) > giveUpAfter {
		w.fail(toolmesh.Errorf(toolmesh.CodeUnavailable, "the chunk store has not answered for %v", giveUpAfter).WithOrigin(toolmesh.OriginAgent))
		return
	}
	state := w.bus.State()
	if state.Connected && state.Generation != w.link ||
		now.Sub(w.progress) >= resendAfter && now.Sub(w.resent) >= resendAfter ||
		w.unheard && now.Sub(w.resent) >= unheardAfter {
		w.again(now)
	}
}

// again goes back to the first chunk without an acknowledgement; w.mu is held.
func (w *Writer) again(now time.Time) {
	w.resent, w.link, w.unheard = now, w.bus.State().Generation, false
	for i := range w.window {
		w.send(&w.window[i])
	}
}

// fail ends the writer; w.mu is held.
func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	wake.Up(w.changed)
}

// deliver takes the acknowledgements.
func (w *Writer) deliver(m *nats.Msg, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.err != nil {
		return
	}
	if err != nil {
		w.fail(err)
		return
	}
	seq, errSeq := strconv.ParseInt(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64)
	i := seq - w.base
	if errSeq != nil || i < 0 || i >= int64(len(w.window)) {
		return // of a chunk that was sent twice
	}
	if bus.NoResponders(m) {
		w.unheard = true
		return // a leader election, or a restart: Tick sends it again
	}
	if bytes.Contains(m.Data, []byte(`"error"`)) {
		if w.refused(seq, m.Data) {
			return
		}
	}
	w.acknowledged(seq)
}

// acknowledged notes that a chunk of the window is stored; w.mu is held.
func (w *Writer) acknowledged(seq int64) {
	w.window[seq-w.base].acked = true
	n := 0
	for n < len(w.window) && w.window[n].acked {
		w.bytes -= len(w.window[n].body)
		if w.opts.Stored != nil {
			w.opts.Stored(w.window[n].chunk, w.window[n].size)
		}
		n++
	}
	if n == 0 {
		return
	}
	w.base += int64(n)
	clear(w.window[:n])
	w.window = w.window[n:]
	if len(w.window) == 0 {
		w.window = nil
	}
	w.progress = time.Now()
	wake.Up(w.changed)
}

// refused reads an error of the store; w.mu is held. It reports false if the
// chunk is stored all the same.
func (w *Writer) refused(seq int64, data []byte) bool {
	var ack struct {
		Error *jetstream.APIError `json:"error"`
	}
	if json.Unmarshal(data, &ack) != nil || ack.Error == nil {
		return false
	}
	conflict := ack.Error.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		ack.Error.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant // in a cluster, at the same time
	switch {
	case conflict && seq == 1 && w.resent.IsZero():
		w.fail(w.taken())
	case conflict && seq == 1:
		w.doubt = true
		wake.Up(w.changed)
	case store.Full(ack.Error):
		w.fail(toolmesh.Errorf(toolmesh.CodeUnavailable, "the chunk store is full (%s): wait until older streams expire, or give it more room", ack.Error.Description).
			WithOrigin(toolmesh.OriginMesh).WithDetail("limit", "chunks_max").WithDetail("err_code", ack.Error.ErrorCode))
	case ack.Error.Code == 503 || ack.Error.Code == 429 || ack.Error.ErrorCode == errDuplicateInProcess:
		// No leader, too much at once, or its first copy is on its way: Tick goes
		// back to it.
	default:
		w.fail(toolmesh.Errorf(toolmesh.CodeUnavailable, "the chunk store refused item %d: %s", seq, ack.Error.Description).
			WithOrigin(toolmesh.OriginMesh).WithDetail("err_code", ack.Error.ErrorCode))
	}
	return true
}
