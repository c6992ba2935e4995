package bridge

import (
	"context"
	"io"
	"sync"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// mostPending is how many bytes wait for the program before put blocks.
const mostPending = 1 << 20

// pipe queues frames for the program. Its methods may be called concurrently; call run once.
type pipe struct {
	to     io.Writer
	packed bool // MessagePack

	mu      sync.Mutex
	pending []byte
	room    chan struct{} // closed when pending has been taken
	closed  bool

	signal chan struct{} // capacity 1: something is pending, or the pipe is closed
}

func newPipe(to io.Writer, packed bool) *pipe {
	return &pipe{to: to, packed: packed, room: make(chan struct{}), signal: make(chan struct{}, 1)}
}

// put queues a frame and blocks while too much is pending. With an error, the cause of ctx, the
// frame is not written.
func (p *pipe) put(ctx context.Context, body []byte) error {
	for {
		p.mu.Lock()
		if len(p.pending) < mostPending || p.closed {
			p.add(body)
			p.mu.Unlock()
			return nil
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// push is put without blocking. It is for the few frames about calls whose frames were put.
func (p *pipe) push(body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(body)
}

// add appends a frame; p.mu is held. After close it drops it.
func (p *pipe) add(body []byte) {
	if p.closed {
		return
	}
	p.pending = appendFrame(p.pending, body, p.packed)
	wake.Up(p.signal)
}

// close makes run return once all frames are written. Later frames are dropped.
func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.free()
	wake.Up(p.signal)
}

// free wakes waiting writers; p.mu is held.
func (p *pipe) free() {
	close(p.room)
	p.room = make(chan struct{})
}

// run writes the frames, all pending ones in one write. The error is the writer's.
func (p *pipe) run() error {
	for range p.signal {
		p.mu.Lock()
		taken, closed := p.pending, p.closed
		p.pending = nil
		p.free()
		p.mu.Unlock()
		if len(taken) > 0 {
			if _, err := p.to.Write(taken); err != nil {
				return err
			}
		}
		if closed {
			return nil
		}
	}
	return nil
}
