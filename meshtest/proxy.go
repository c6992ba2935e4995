package meshtest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Proxy passes the bytes of TCP connections to a broker, and can cut, stop or hold them.
// Its methods may be called concurrently.
type Proxy struct {
	// URL is where clients connect instead of to the broker.
	URL string

	target string
	listen net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	refuse bool
	closed bool
	hold   chan struct{} // closed = bytes pass; open = a black hole
	stall  bool          // hold holds only data for the broker
}

// NewProxy starts a proxy to a broker. It ends with the test.
func NewProxy(t testing.TB, to *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p := &Proxy{
		URL: "nats://" + l.Addr().String(), target: to.Address(), listen: l,
		conns: make(map[net.Conn]struct{}), hold: make(chan struct{}),
	}
	close(p.hold)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Connect connects through the proxy, and only through it, with the mesh's policy.
func (p *Proxy) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, p.URL, append([]nats.Option{nats.IgnoreDiscoveredServers()}, options...))
}

// Cut closes every connection. New ones are refused until [Proxy.Heal] if refuse is set.
func (p *Proxy) Cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
	p.closeAll()
}

// Blackhole keeps every connection open and passes no data, in either direction, until
// [Proxy.Heal], as a lost machine or cable does.
func (p *Proxy) Blackhole() { p.holdBack(false) }

// Stall stops reading from clients until [Proxy.Heal], so that their sockets fill. Data from the
// broker still passes.
func (p *Proxy) Stall() { p.holdBack(true) }

func (p *Proxy) holdBack(stall bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall = stall
	if p.passing() {
		p.hold = make(chan struct{})
	}
}

// Heal passes all data again, including the held data, and accepts new connections.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = false
	if !p.passing() {
		close(p.hold)
	}
}

// Clog has a connection through a proxy that has stopped reading publish more than
// all sockets in between take, and returns when it has, or gets no further.
func Clog(t testing.TB, nc *nats.Conn) {
	t.Helper()
	const pieces = 40
	body := make([]byte, 512<<10)
	var sent atomic.Int64
	done := make(chan struct{})
	go func() { // ends with the connection, or when it is read again
		defer close(done)
		for sent.Load() < pieces && nc.Publish("clog", body) == nil {
			sent.Add(1)
		}
	}()
	t.Cleanup(func() { <-done })
	last, since := int64(-1), time.Now()
	Until(t, "the socket is full", func() bool {
		if now := sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last == pieces || time.Since(since) > time.Second
	})
}

func (p *Proxy) passing() bool {
	select {
	case <-p.hold:
		return true
	default:
		return false
	}
}

func (p *Proxy) closeAll() {
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *Proxy) close() {
	_ = p.listen.Close()
	p.mu.Lock()
	p.closed = true
	p.closeAll()
	if !p.passing() {
		close(p.hold)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		in, err := p.listen.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse || p.closed
		p.mu.Unlock()
		if refuse {
			_ = in.Close()
			continue
		}
		var d net.Dialer
		out, err := d.DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.refuse || p.closed {
			_, _ = in.Close(), out.Close()
			p.mu.Unlock()
			continue
		}
		p.conns[in], p.conns[out] = struct{}{}, struct{}{}
		p.wg.Go(func() { p.pass(out, in, true) })
		p.wg.Go(func() { p.pass(in, out, false) })
		p.mu.Unlock()
	}
}

// pass copies until one side ends, then ends both.
func (p *Proxy) pass(to, from net.Conn, up bool) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
		_, _ = to.Close(), from.Close()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		hold, held := p.hold, up || !p.stall
		p.mu.Unlock()
		if held {
			<-hold
		}
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF && n > 0 {
				continue
			}
			return
		}
	}
}
