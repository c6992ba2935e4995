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

// maxCopyMessage bounds one message of a base.
const maxCopyMessage = 64 << 10

// Base is a process from which root processes are copied instead of being started as
// programs: they have the modules that it has loaded. A copy is contained like a program that
// [Spawner.Start] starts; it is a child of the agent, not of the base, and outlives it. Safe
// for concurrent use.
type Base struct {
	*Process

	spawner *Spawner
	mu      sync.Mutex // one copy at a time, as answers name no request
}

// copyRequest tells a copy how to set itself up before it continues.
type copyRequest struct {
	Flags uintptr `json:"flags"` // of clone: the namespaces
	Death bool    `json:"death"` // it dies with the agent
	// Maps are the id mappings of its user namespace: files below its /proc, and the text to
	// write to each; null without a user namespace.
	Maps [][2]string `json:"maps"`
	// Capabilities are those that it keeps; null keeps all.
	Capabilities []uintptr `json:"capabilities"`
	Mode         string    `json:"mode"`
	Adopts       bool      `json:"adopts"` // it continues with the base's modules
}

// StartBase starts a program with a socket of messages at descriptor 3. It sends hello there
// when copies can be made. cmd.Sandbox is ignored: only the copies are contained. Kill ends the
// base, but not its copies. Errors are those of the system, and [errors.ErrUnsupported].
func (s *Spawner) StartBase(cmd Command) (*Base, error) {
	attr, err := baseAttributes()
	if err != nil {
		return nil, err
	}
	p, err := s.begin(cmd, unix.SOCK_SEQPACKET, false, func(Level) ([]string, *syscall.SysProcAttr) { return nil, attr })
	if err != nil {
		return nil, err
	}
	p.Level = "" // copies are not below it
	return &Base{Process: p, spawner: s}, nil
}

// Hello waits for the next message of the base: the first says that copies can be made.
func (b *Base) Hello(timeout time.Duration) ([]byte, error) {
	if err := b.Control.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	buf := make([]byte, maxCopyMessage)
	n, err := b.Control.Read(buf)
	if err == nil && n == 0 {
		err = errors.New("it ended")
	}
	if err != nil {
		return nil, fmt.Errorf("the base process does not answer: %w", err)
	}
	return buf[:n], nil
}

// Start makes a copy that is a root process, as one started by [Spawner.Start], in the root
// folder, for a sandbox level. With adopts it continues with the modules of the base, else it
// starts a program. It fails where the system refuses the spawner's level: copies have no
// fallback.
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
	message, _ := json.Marshal(request) // of texts and numbers
	pid, err := b.copy(message, Rights(theirs))
	if err != nil {
		return nil, err
	}
	// It is our child, and only we wait for it: the id is still its own.
	if p.proc, err = os.FindProcess(pid); err != nil {
		return nil, err
	}
	go p.wait()
	return p, nil
}

// copy requests one copy and returns its process id.
func (b *Base) copy(message, rights []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, _, err := b.Control.WriteMsgUnix(message, rights, nil); err != nil {
		return 0, err
	}
	data, err := b.Hello(copyTimeout)
	if err != nil {
		_ = b.Control.Close() // a late answer would be taken for that of the next request
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
