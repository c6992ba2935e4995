package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
)

// logFile is the log of a mesh in the background, in its data folder. If it is larger than logMost,
// the next start of the mesh renames it.
const (
	logFile = "toolmesh.log"
	logMost = 16 << 20
)

// detach starts `mesh up` in the background with the same flags. It returns when calls can be
// served.
func (a *app) detach(ctx context.Context, flags *pflag.FlagSet) error {
	dir, err := process.DataFolder(a.env, a.set.DataDir)
	if err != nil {
		return usage(nil, "%s", err.Error())
	}
	args := []string{"up", "--data-dir=" + dir}
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "detach", "data-dir", "json":
		default:
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	up, err := a.spawn(dir, args)
	if err != nil {
		return err
	}
	started := a.running("starting: building what is installed", "")
	ready, err := up.wait(ctx)
	started()
	if err != nil {
		return err
	}
	fmt.Fprintln(a.out, ready)
	url, _, _ := strings.Cut(strings.TrimPrefix(ready, readyLine), " ")
	a.warnUnfound(url, dir)
	if a.term.err {
		fmt.Fprintln(a.err, a.term.dim("it runs in the background; mesh down stops it; log: "+up.log))
	}
	return nil
}

// warnUnfound warns if other commands cannot find the new mesh. The reason is in its log.
func (a *app) warnUnfound(url, dir string) {
	s := connect.StateOf(a.env)
	if !slices.ContainsFunc(s.Running(), func(r connect.Record) bool { return r.URL == url }) {
		needed := "--server " + url
		if r, _, _ := connect.ReadRecord(filepath.Join(dir, upFile)); r.Keys {
			needed += " --nkey " + access.File(dir, access.Admin)
		}
		fmt.Fprintf(a.err, "mesh: warning: other commands need %s: the mesh could not be recorded in %q\n", needed, s)
	}
}

// background is a mesh in a process of its own.
type background struct {
	cmd   *exec.Cmd
	out   *bufio.Reader
	log   string
	begin int // offset in the log of the lines of this start
}

// spawn starts this program again, in a new process session, with its log in dir.
func (a *app) spawn(dir string, args []string) (*background, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "find this program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the data folder cannot be made; name another with --data-dir: %w", err)
	}
	b := &background{log: filepath.Join(dir, logFile)}
	if info, err := os.Stat(b.log); err == nil && info.Size() > logMost {
		_ = os.Rename(b.log, b.log+".1")
	}
	log, err := os.OpenFile(b.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the log cannot be written: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	if info, err := log.Stat(); err == nil {
		b.begin = int(info.Size())
	}
	b.cmd = exec.Command(self, args...)
	b.cmd.Env, b.cmd.Dir, b.cmd.Stderr = a.env, dir, log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "start the mesh: %w", err)
	}
	if err := b.cmd.Start(); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "start the mesh: %w", err)
	}
	b.out = bufio.NewReader(out)
	return b, nil
}

// wait returns the line that says that the mesh is ready. If ctx ends first, wait stops the
// process. If the process ends by itself, the error has the end of its log.
func (b *background) wait(ctx context.Context) (string, error) {
	release := context.AfterFunc(ctx, func() { _ = b.cmd.Process.Signal(syscall.SIGTERM) })
	line, err := b.out.ReadString('\n')
	if release() && err == nil {
		return strings.TrimSpace(line), nil
	}
	_, _ = io.Copy(io.Discard, b.out)
	ended := b.cmd.Wait()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	why := b.tail()
	if why == "" && ended != nil {
		why = ended.Error()
	}
	if why == "" {
		why = "it ended without output"
	}
	return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the mesh did not start: %s", why).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// tail returns why the process ended: its last output without log lines, if any, else the last
// lines of the log.
func (b *background) tail() string {
	data, err := os.ReadFile(b.log)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data[min(b.begin, len(data)):])), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if text, ok := strings.CutPrefix(lines[i], "mesh: "); ok {
			return text
		}
	}
	return "log " + b.log + " ends with\n  " + strings.Join(lines[max(0, len(lines)-10):], "\n  ")
}
