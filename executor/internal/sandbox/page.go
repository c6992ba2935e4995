package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// Page is memory that the agent shares with one worker: 64-bit words that either
// side reads without a message. calls/plain.py has the same words.
type Page struct {
	mem  []byte
	file *os.File
}

// The words of a [Page].
const (
	// WordCancel is the call that must stop; written by the agent.
	WordCancel = 0
	// WordStarted is the last call whose function a worker of plain functions entered.
	WordStarted = 1
	// WordTaken counts the calls that a worker of coroutines has received.
	WordTaken = 2
	// WordHeard is the last cancelled call that the worker is stopping.
	WordHeard = 3
	// WordRunning is a call on which a worker of coroutines spent processor time since
	// the agent last cleared it.
	WordRunning = 4
	// WordUntil is when a worker whose call holds a lane must have stopped, in the unit of
	// [Boottime]; 0 is never. The agent writes it, the zygote enforces it.
	WordUntil = 5
)

// Boottime is a time of this process by the clock that continues while the machine sleeps,
// in nanoseconds. Other processes of the machine compare it with their own.
func Boottime(t time.Time) uint64 {
	return uint64(max(boottime()+time.Until(t), 1)) //nolint:gosec // not negative
}

// NewPage makes a page of zeros.
func NewPage() (*Page, error) {
	file, err := newPageFile()
	if err != nil {
		return nil, err
	}
	var mem []byte
	if err = errors.Join(file.Truncate(pageSize), sealPage(file)); err == nil {
		mem, err = unix.Mmap(int(file.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) //nolint:gosec // descriptors are small
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("page: %w", err)
	}
	return &Page{mem: mem, file: file}, nil
}

// File is the descriptor for the worker, until Sent.
func (p *Page) File() *os.File { return p.file }

// Sent closes our descriptor; the memory stays.
func (p *Page) Sent() { _ = p.file.Close() }

// Load reads a word.
func (p *Page) Load(word int) uint64 { return atomic.LoadUint64(p.word(word)) }

// Store writes a word.
func (p *Page) Store(word int, value uint64) { atomic.StoreUint64(p.word(word), value) }

func (p *Page) word(n int) *uint64 {
	return (*uint64)(unsafe.Pointer(&p.mem[8*n])) //nolint:gosec // mapped memory is page-aligned
}

// Close unmaps the page. No Load or Store may follow.
func (p *Page) Close() { _ = unix.Munmap(p.mem) }
