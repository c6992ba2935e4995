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

	"github.com/toolmesh/toolmesh/tool"
)

// Request is what the process above a program is asked for: see startup/command.py.
type Request struct {
	Level tool.Sandbox
	// Folder is the one that strict leaves to be written; empty for none.
	Folder string
	User   User
	// Given are folders that the program has, whatever user owns them.
	Given []Path
	// OpenFiles, Memory and FileSize (bytes) bound each process of the program; 0 is no bound.
	OpenFiles        int
	Memory, FileSize int64
	// Processes bounds all processes and threads of User, which is not ours, on the machine;
	// 0 is no bound.
	Processes int
	Argv, Env []string
	// Bounds are what [Spawner.Run] keeps the program within, with all that it starts.
	Bounds Bounds
	// Stdout is where [Spawner.Run] writes what the program writes, which it does not return then.
	Stdout io.Writer
}

// Encode is the message on the control socket.
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

// What Run keeps of a program's output, in bytes: more than maxOutput is a failure, of
// maxWords the middle is left out.
const maxOutput, maxWords = 64 << 20, 1 << 20

// Run starts launch, which is startup/command.py, has it run a program, and gives what
// the program wrote. When ctx ends, or the program exceeds its bounds,
// it is killed with what it started. The error says how it failed, or why it could not be
// started.
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
				words = append(words[:maxWords/2], words[len(words)-maxWords/2:]...)
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
		return nil, stderr, fmt.Errorf("it wrote more than %d bytes, and was ended", maxOutput)
	case ending.Refused != "":
		return nil, stderr, fmt.Errorf("the sandbox level %s cannot be had: %s", r.Level, ending.Refused)
	case ending.Lost:
		return nil, stderr, errors.New("the process above it was killed")
	case ending.Failed != 0:
		return nil, stderr, fmt.Errorf("it cannot be started: %w", ending.Failed)
	case ending.Exit != Exit{}:
		return nil, stderr, errors.New(ending.Exit.String())
	}
	return stdout, stderr, nil
}

// Ending is how a program ended, as startup/command.py reports it.
type Ending struct {
	Lost    bool          // nothing was reported that we understand: the process above it was killed
	Refused string        // why its sandbox level cannot be had; empty: it can
	Failed  syscall.Errno // why it cannot be executed; 0: it was
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
		e.Failed = cmp.Or(syscall.Errno(number), syscall.ENOEXEC) // 0 is an error that has no number
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
