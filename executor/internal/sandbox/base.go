package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/tool"
)

// copyTimeout bounds one copy: a base that takes longer is of no use.
const copyTimeout = 20 * time.Second

// maxCopyMessage bounds what a base says at once.
const maxCopyMessage = 64 << 10

// Base is a process of which root processes are copied, instead of being started
// as programs: what it has loaded they find loaded. A copy is contained like a
// program that [Spawner.Start] starts; it is a child of the agent, not of the
// base, and outlives it. Safe for concurrent use.
type Base struct {
	*Process

	spawner *Spawner
	mu      sync.Mutex // one copy at a time: the answers have no names
}

// copyRequest is what the copy has to do before it is what the agent wants.
type copyRequest struct {
	Flags uintptr `json:"flags"` // of clone: the namespaces
	Death bool    `json:"death"` // it dies with the agent
	// Maps are what its user namespace is to know: files below its /proc, and what to
	// write to each; null without one.
	Maps [][2]string `json:"maps"`
	// Capabilities are those that it keeps; null: all.
	Capabilities []uintptr `json:"capabilities"`
	Mode         string    `json:"mode"`
	Adopts       bool      `json:"adopts"` // it goes on with what the base has loaded
}

// StartBase starts a program that finds a socket of messages at descriptor 3. It says hello
// there when copies can be made. cmd.Sandbox is of no meaning: the base is contained by its
// copies alone. Kill ends the base, and its copies live on. Errors are those of the system,
// and [errors.ErrUnsupported].
func (s *Spawner) StartBase(cmd Command) (*Base, error) {
	attr, err := baseAttributes()
	if err != nil {
		return nil, err
	}
	p, err := s.begin(cmd, unix.SOCK_SEQPACKET, false, func(Level) ([]string, *syscall.SysProcAttr) { return nil, attr })
	if err != nil {
		return nil, err
	}
	p.Level = "" // nothing is below it
	return &Base{Process: p, spawner: s}, nil
}

// Hello waits for what the base says next: at first that copies can be made.
func (b *Base) Hello(timeout time.Duration) ([]byte, error) {
	if err := b.Control.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	buf := make([]byte, maxCopyMessage)
	n, err := b.Control.Read(buf)
	if err == nil && n == 0 {
		err = errors.New("it has ended")
	}
	if err != nil {
		return nil, fmt.Errorf("the base process does not answer: %w", err)
	}
	return buf[:n], nil
}

// Start makes a copy that is a root process as one started by [Spawner.Start]
// is, in the root folder, for a sandbox level. With adopts it goes on with what the base
// has loaded, else it starts a program. Where the system refuses what the
// spawner's level needs that is an error: there is no next level for copies.
func (b *Base) Start(box tool.Sandbox, adopts bool) (_ *Process, err error) {
	p, theirs, err := newProcess(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer func() {
		CloseAll(theirs)
		if err != nil {
			p.closeChannels()
			err = fmt.Errorf("copy the base process: %w", err)
		}
	}()
	p.Level = b.spawner.Level()
	request := requestOf(p.Level, box, b.spawner.all)
	request.Mode, request.Adopts = p.Level.Mode(), adopts
	message, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	rights, err := Rights(theirs)
	if err != nil {
		return nil, err
	}
	pid, err := b.copy(message, rights)
	if err != nil {
		return nil, err
	}
	// It is our child, and is waited for here alone: the id is still its own.
	if p.proc, err = os.FindProcess(pid); err != nil {
		return nil, err
	}
	go p.wait()
	return p, nil
}

// copy has one copy made, and returns its process id.
func (b *Base) copy(message, rights []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, _, err := b.Control.WriteMsgUnix(message, rights, nil); err != nil {
		return 0, err
	}
	data, err := b.Hello(copyTimeout)
	if err != nil {
		_ = b.Control.Close() // an answer that came yet would be taken for another's
		return 0, err
	}
	var answer struct {
		Pid   int `json:"pid"`
		Errno int `json:"errno"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, err
	}
	if answer.Pid <= 0 {
		return 0, syscall.Errno(answer.Errno) //nolint:gosec // as the kernel gave it
	}
	return answer.Pid, nil
}
