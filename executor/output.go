package executor

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/executor/frame"
)

// The rate of output that is passed on; what exceeds it is read and dropped.
// The worker holds calls to the same numbers; these are for what bypasses it.
const (
	outputBurst = 256 << 10
	outputRate  = 64 << 10 // bytes per second
	tailSize    = 4 << 10
)

// bucket is a token bucket over bytes. The zero value is full. Not for
// concurrent use.
type bucket struct {
	used float64
	last time.Time
}

func (b *bucket) take(n int) bool {
	now := time.Now()
	if !b.last.IsZero() {
		b.used = max(0, b.used-now.Sub(b.last).Seconds()*outputRate)
	}
	b.last = now
	if b.used+float64(n) > outputBurst {
		return false
	}
	b.used += float64(n)
	return true
}

// tail keeps the last bytes of a stream, as long as they are one session's: what
// a worker's call leaves there is not for the next one, who may be somebody else.
// Safe for concurrent use.
type tail struct {
	redact *redactor // set before use
	mu     sync.Mutex
	buf    []byte
	whose  string // session
}

func (t *tail) add(data []byte, whose string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if whose != t.whose {
		t.buf, t.whose = t.buf[:0], whose
	}
	size := tailSize + t.redact.overlap() // what begins before the tail is still known in it
	if len(data) >= size {
		t.buf = append(t.buf[:0], data[len(data)-size:]...)
		return
	}
	if over := len(t.buf) + len(data) - size; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, data...)
}

// forget drops what there is: the call that wrote it has ended.
func (t *tail) forget() {
	t.mu.Lock()
	t.buf = t.buf[:0]
	t.mu.Unlock()
}

// of is what a session's call may see.
func (t *tail) of(session string) string {
	t.mu.Lock()
	mine := session == t.whose
	t.mu.Unlock()
	if !mine {
		return ""
	}
	return t.String()
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.redact.text(string(t.buf))
	if len(text) > tailSize {
		text = text[len(text)-tailSize:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
}

// rawPipe is the read end of a worker's descriptor 1 or 2: what bypasses
// sys.stdout. Reading and handing over are one step under the worker's log
// lock, so that output is handed over before the end of the call that made it.
type rawPipe struct {
	w       *worker
	file    *os.File
	conn    syscall.RawConn // file's
	drain   func(fd uintptr)
	stream  Stream
	buf     []byte
	partial []byte // a line whose end has not come
	budget  bucket
}

func newRawPipe(w *worker, file *os.File, stream Stream) (*rawPipe, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &rawPipe{w: w, file: file, conn: conn, stream: stream, buf: make([]byte, 8<<10)}
	p.drain = p.drained
	return p, nil
}

// run hands over what arrives, until the end.
func (p *rawPipe) run() {
	_ = p.conn.Read(func(fd uintptr) bool {
		return p.step(int(fd)) //nolint:gosec // descriptors are small
	})
}

// step takes what is there; true at the end of the stream. It lets the lock go
// between reads: a flood must not keep a call's end waiting.
func (p *rawPipe) step(fd int) bool {
	for {
		p.w.logMu.Lock()
		n, err := unix.Read(fd, p.buf)
		if n > 0 {
			p.take(p.buf[:n])
		}
		p.w.logMu.Unlock()
		switch {
		case n > 0 || errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		default:
			return true
		}
	}
}

// flush takes what waits, at most a pipe full. The log lock is held.
func (p *rawPipe) flush() { _ = p.conn.Control(p.drain) }

func (p *rawPipe) drained(fd uintptr) {
	for range 64<<10/len(p.buf) + 1 {
		n, err := unix.Read(int(fd), p.buf) //nolint:gosec // descriptors are small
		if n > 0 {
			p.take(p.buf[:n])
		} else if err != unix.EINTR { //nolint:errorlint // a plain errno
			return
		}
	}
}

// take hands whole lines over and keeps the rest for later. The log lock is held.
func (p *rawPipe) take(data []byte) {
	if p.stream == StreamStderr {
		if session, ok := p.w.session(); ok {
			p.w.tail.add(data, session)
		} else {
			p.w.tail.forget() // it is nobody's, or several's
		}
	}
	if !p.budget.take(len(data)) {
		return
	}
	p.partial = append(p.partial, data...)
	end := bytes.LastIndexByte(p.partial, '\n') + 1
	if len(p.partial)-end > cap(p.buf)+p.w.crew.index.redact.overlap() {
		end = len(p.partial) - p.w.crew.index.redact.overlap()
	}
	p.hand(end)
}

// end takes the rest when the worker has ended.
func (p *rawPipe) end() {
	p.flush()
	p.settle()
}

// settle hands over what has no line break yet: its call ends. The log lock is held.
func (p *rawPipe) settle() { p.hand(len(p.partial)) }

func (p *rawPipe) hand(end int) {
	if end == 0 {
		return
	}
	text := strings.ToValidUTF8(p.w.crew.index.redact.text(string(p.partial[:end])), "\uFFFD")
	p.partial = append(p.partial[:0], p.partial[end:]...)
	p.w.hand(p.w.only(), Record{Time: time.Now(), Stream: p.stream, Message: strings.TrimSuffix(text, "\n")})
}

// recordOf makes a record of a LOG frame.
func recordOf(flags uint8, body []byte) Record {
	r := Record{Time: time.Now()}
	switch flags {
	case frame.LogRecord, frame.LogProgress:
		r.Stream = StreamLog
		if flags == frame.LogProgress {
			r.Stream = StreamProgress
		}
		var m struct {
			Level   string          `json:"level"`
			Logger  string          `json:"logger"`
			Message string          `json:"message"`
			Fields  json.RawMessage `json:"fields"`
		}
		if json.Unmarshal(body, &m) != nil {
			r.Message = string(body)
			return r
		}
		r.Level, r.Logger, r.Message, r.Fields = levelOf(m.Level), m.Logger, m.Message, m.Fields
	case frame.LogStdout:
		r.Stream = StreamStdout
		r.Message = strings.TrimSuffix(string(body), "\n")
	default:
		r.Stream = StreamStderr
		r.Message = strings.TrimSuffix(string(body), "\n")
	}
	return r
}

func levelOf(name string) slog.Level {
	switch name {
	case "debug":
		return slog.LevelDebug
	case "warning":
		return slog.LevelWarn
	case "error", "critical":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}
