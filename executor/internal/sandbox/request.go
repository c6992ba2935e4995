package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/tool"
)

// Request configures the process above a program: see startup/command.py.
type Request struct {
	Level tool.Sandbox
	// Folder is the writable folder under strict; empty for none.
	Folder string
	User   User
	// Given are folders for the program, whichever user owns them.
	Given []Path
	// OpenFiles, Memory and FileSize (bytes) limit each process of the program; 0 is no limit.
	OpenFiles        int
	Memory, FileSize int64
	// Processes limits all processes and threads of User, which must not be ours, on the
	// machine; 0 is no limit.
	Processes int
	Argv, Env []string
	// Bounds are enforced by [Spawner.Run] for the program and all its processes.
	Bounds Bounds
	// Stdout gets the program's output in place of [Spawner.Run]'s result.
	Stdout io.Writer
}

// Encode returns the message for the control socket.
func (r Request) Encode() []byte {
	var b bytes.Buffer
	b.Write([]byte{0, 0, 0, 0})
	ids := strings.Trim(fmt.Sprint(r.User.IDs()), "[]")
	fmt.Fprintf(&b, "%s\x00%s\x00%s\x00%d\x00%d\x00%d\x00%d\x00%d\x00%d\x00", r.Level, r.Folder, ids, r.OpenFiles, r.Memory, r.FileSize, r.Processes,
		len(r.Given), len(r.Argv))
	for _, p := range r.Given {
		fmt.Fprintf(&b, "%s%s\x00", p.Access, p.Path)
	}
	for _, text := range append(r.Argv[:len(r.Argv):len(r.Argv)], r.Env...) {
		b.WriteString(text)
		b.WriteByte(0)
	}
	binary.LittleEndian.PutUint32(b.Bytes(), uint32(b.Len()-4)) //nolint:gosec // bounded by the size of a message
	return b.Bytes()
}

// Scratch gives the program a folder below parent for its temporary files, as [OwnFolder] makes it;
// remove must be called after the program's end.
func (r *Request) Scratch(parent string) (remove func(), err error) {
	folder, err := OwnFolder(parent, r.Level, r.User)
	if folder == "" {
		return func() {}, err
	}
	r.Folder = folder
	r.Given = append(r.Given, Path{Path: folder, Access: AccessOwn})
	r.Env = append(r.Env, "TMPDIR="+folder)
	return func() { _ = deep.RemoveAll(folder) }, nil
}

// Bounds on a program's output, in bytes: standard output over maxOutput is a failure, of
// standard error over maxWords the middle is dropped.
const maxOutput, maxWords = 64 << 20, 1 << 20

// Run starts launch, which is startup/command.py, to run a program, and returns the program's
// output. The program and its processes are killed when ctx ends or the program exceeds its
// bounds. The error says how it failed or why it did not start.
func (s *Spawner) Run(ctx context.Context, launch Command, r Request) (stdout []byte, stderr string, err error) {
	launch.Sandbox = r.Level
	proc, err := s.Start(launch)
	if err != nil {
		return nil, "", err
	}
	defer proc.Kill()
	defer context.AfterFunc(ctx, proc.Kill)()
	exceeded := s.keep(proc, r.Bounds) // it starts nothing before it has read the request
	if _, err := proc.Control.Write(r.Encode()); err != nil && ctx.Err() == nil {
		return nil, "", err
	}
	var readers sync.WaitGroup
	var words []byte
	readers.Go(func() {
		if r.Stdout != nil {
			if _, err := io.Copy(r.Stdout, proc.Stdout); err != nil {
				proc.Kill()
			}
			return
		}
		if stdout, _ = io.ReadAll(io.LimitReader(proc.Stdout, maxOutput+1)); len(stdout) > maxOutput {
			proc.Kill()
		}
	})
	readers.Go(func() {
		for part := make([]byte, 32<<10); ; {
			n, err := proc.Stderr.Read(part)
			if words = append(words, part[:n]...); len(words) > 2*maxWords {
				// In whole lines: no pattern finds a secret that is cut.
				head := words[:bytes.LastIndexByte(words[:maxWords/2], '\n')+1]
				_, tail, _ := bytes.Cut(words[len(words)-maxWords/2:], []byte("\n"))
				words = append(head, tail...)
			}
			if err != nil {
				return
			}
		}
	})
	ending := proc.Ending()
	readers.Wait()
	stderr = strings.TrimSpace(strings.ToValidUTF8(string(words), "\uFFFD"))
	switch exceeded := exceeded(); {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case exceeded != nil:
		return nil, stderr, exceeded
	case len(stdout) > maxOutput:
		return nil, stderr, fmt.Errorf("it wrote more than %d bytes and was killed", maxOutput)
	case ending.Refused != "":
		return nil, stderr, fmt.Errorf("the sandbox level %s is not available: %s", r.Level, ending.Refused)
	case ending.Lost:
		return nil, stderr, errors.New("the process above it was killed")
	case ending.Failed != 0:
		return nil, stderr, fmt.Errorf("it could not be started: %w", ending.Failed)
	case ending.Exit != Exit{}:
		return nil, stderr, ending.Exit
	}
	return stdout, stderr, nil
}

// Ending is how a program ended, as startup/command.py reports it.
type Ending struct {
	Lost    bool          // without a readable report: the process above it was killed
	Refused string        // why its sandbox level is not available; empty if it is
	Failed  syscall.Errno // why it could not be executed; 0 if it was
	Exit    Exit
}

// Ending waits until the process above a program has ended.
func (p *Process) Ending() (e Ending) {
	said, _ := io.ReadAll(io.LimitReader(p.Control, 512))
	<-p.done
	what, rest, _ := strings.Cut(string(said), " ")
	number, err := strconv.ParseUint(rest, 10, 16)
	switch {
	case what == "refused":
		e.Refused = cmp.Or(rest, "no reason was given")
	case what == "exec" && err == nil:
		e.Failed = cmp.Or(syscall.Errno(number), syscall.ENOEXEC) // 0 is an error without a number
	case what == "exit" && err == nil:
		if status := syscall.WaitStatus(number); status.Signaled() { //nolint:gosec // as the system gave it
			e.Exit = Exit{Code: -1, Signal: int(status.Signal())}
		} else {
			e.Exit.Code = status.ExitStatus()
		}
	default:
		e.Lost = true
	}
	return e
}
