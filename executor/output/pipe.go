package output

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pipe is the read end of a worker's descriptor 1 or 2: what bypasses sys.stdout.
// Reading and handing over are one step under its owner's lock, so that output is
// handed over before the end of the call that made it.
type Pipe struct {
	file    *os.File
	conn    syscall.RawConn // file's
	stream  Stream
	redact  *Redactor
	lock    sync.Locker
	seen    func(data []byte)
	hand    func(Record)
	drain   func(fd uintptr)
	buf     []byte
	partial []byte // a line whose end has not come
	budget  Bucket
}

// NewPipe makes a pipe of a file, which it owns from then on. seen gets all that
// is read, hand what is passed on, both with lock held. seen may be nil.
func NewPipe(file *os.File, stream Stream, redact *Redactor, lock sync.Locker, seen func(data []byte), hand func(Record)) (*Pipe, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &Pipe{file: file, conn: conn, stream: stream, redact: redact, lock: lock, seen: seen, hand: hand, buf: make([]byte, 8<<10)}
	p.drain = p.drained
	return p, nil
}

// Run hands over what arrives, until the end.
func (p *Pipe) Run() {
	_ = p.conn.Read(func(fd uintptr) bool {
		return p.step(int(fd)) //nolint:gosec // descriptors are small
	})
}

// step takes what is there; true at the end of the stream. It lets the lock go
// between reads: a flood must not delay a call's end.
func (p *Pipe) step(fd int) bool {
	for {
		p.lock.Lock()
		n, err := unix.Read(fd, p.buf)
		if n > 0 {
			p.take(p.buf[:n])
		}
		p.lock.Unlock()
		switch {
		case n > 0 || errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		default:
			return true
		}
	}
}

// Flush takes what waits, at most a pipe full. The lock is held.
func (p *Pipe) Flush() { _ = p.conn.Control(p.drain) }

func (p *Pipe) drained(fd uintptr) {
	for range 64<<10/len(p.buf) + 1 {
		n, err := unix.Read(int(fd), p.buf) //nolint:gosec // descriptors are small
		if n > 0 {
			p.take(p.buf[:n])
		} else if err != unix.EINTR { //nolint:errorlint // a plain errno
			return
		}
	}
}

// take hands whole lines over and leaves the rest for later. The lock is held.
func (p *Pipe) take(data []byte) {
	if p.seen != nil {
		p.seen(data)
	}
	if !p.budget.Take(len(data)) {
		return
	}
	p.partial = append(p.partial, data...)
	end := bytes.LastIndexByte(p.partial, '\n') + 1
	if len(p.partial)-end > cap(p.buf)+p.redact.Overlap() {
		end = len(p.partial) - p.redact.Overlap()
	}
	p.pass(end)
}

// Settle hands over what has no line break yet: its call ends. The lock is held.
func (p *Pipe) Settle() { p.pass(len(p.partial)) }

// Close closes the file, which ends Run.
func (p *Pipe) Close() { _ = p.file.Close() }

func (p *Pipe) pass(end int) {
	if end == 0 {
		return
	}
	text := strings.ToValidUTF8(p.redact.Text(string(p.partial[:end])), "\uFFFD")
	p.partial = append(p.partial[:0], p.partial[end:]...)
	p.hand(Record{Time: time.Now(), Stream: p.stream, Message: strings.TrimSuffix(text, "\n")})
}
