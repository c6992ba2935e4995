package output

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pipe is the read end of a worker's descriptor 1 or 2, for output that bypasses sys.stdout.
type Pipe struct {
	lock  sync.Locker
	file  *os.File
	conn  syscall.RawConn // file's
	drain func(fd uintptr)
	saw   func(data []byte) // may be nil
	lines *Lines
	buf   []byte
}

// NewPipe makes a Pipe of a file that does not block; it owns the file unless it returns an
// error. Data is passed to saw, unless that is nil, and then as lines to hand; both are called
// with lock held.
func NewPipe(file *os.File, lock sync.Locker, saw func(data []byte), lines *Lines) (*Pipe, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &Pipe{lock: lock, file: file, conn: conn, saw: saw, lines: lines, buf: make([]byte, 8<<10)}
	p.drain = p.drained
	return p, nil
}

// Run passes on data as it arrives, until the end. The lock must not be held.
func (p *Pipe) Run() {
	_ = p.conn.Read(func(fd uintptr) bool {
		return p.step(int(fd)) //nolint:gosec // descriptors are small
	})
}

// step reads the available data; true at the end of the stream. It releases the lock between
// reads: a flood must not delay a call's end.
func (p *Pipe) step(fd int) bool {
	for {
		p.lock.Lock()
		n, err := p.read(fd)
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

func (p *Pipe) drained(fd uintptr) {
	for range 64<<10/len(p.buf) + 1 {
		if n, err := p.read(int(fd)); n <= 0 && !errors.Is(err, unix.EINTR) { //nolint:gosec // descriptors are small
			return
		}
	}
}

// read passes on the data of one read. The lock is held.
func (p *Pipe) read(fd int) (int, error) {
	n, err := unix.Read(fd, p.buf)
	if n > 0 {
		if p.saw != nil {
			p.saw(p.buf[:n])
		}
		p.lines.Add(p.buf[:n])
	}
	return n, err
}

// Settle passes on an unfinished line, as its call ends; with flush also waiting data, at most a pipe
// full. The lock is held.
func (p *Pipe) Settle(flush bool) {
	if flush {
		_ = p.conn.Control(p.drain)
	}
	p.lines.Settle()
}

// Close reads the rest after the worker has ended, and ends Run. The lock must
// not be held.
func (p *Pipe) Close() {
	p.lock.Lock()
	p.Settle(true)
	p.lock.Unlock()
	_ = p.file.Close()
}
