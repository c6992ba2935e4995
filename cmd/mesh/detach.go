package main

import (
	"bufio"
	"cmp"
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
	log := filepath.Join(dir, logFile)
	started := a.running("starting: building what is installed", "")
	ready, err := a.background(ctx, dir, log, args)
	started()
	if err != nil {
		return err
	}
	fmt.Fprintln(a.out, ready)
	url, _, _ := strings.Cut(strings.TrimPrefix(ready, readyLine), " ")
	a.warnUnfound(url, dir)
	if a.term.err {
		fmt.Fprintln(a.err, a.term.dim("it runs in the background; mesh down stops it; log: "+log))
	}
	return nil
}

// warnUnfound warns if other commands cannot find the new mesh. The reason is in its log.
func (a *app) warnUnfound(url, dir string) {
	s := connect.StateOf(a.env)
	if !slices.ContainsFunc(s.Running(), func(r connect.Record) bool { return r.URL == url }) {
		needed := "--server " + url
		if r, _, _ := connect.ReadRecord(filepath.Join(dir, upFile)); r.Keys {
			needed += " --nkey " + shellQuote(access.File(dir, access.Admin))
		}
		fmt.Fprintf(a.err, "mesh: warning: other commands need %s: the mesh could not be recorded in %s\n", needed, cmp.Or(string(s), "$HOME/.local/state/toolmesh"))
	}
}

// background starts this program again in a new process session, with a log at path in dir. It returns the line that
// says that the mesh is ready. If ctx ends first it stops the process. If the process ends by itself, the error has the
// end of its log.
func (a *app) background(ctx context.Context, dir, path string, args []string) (ready string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInternal, "find this program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the data folder cannot be made; name another with --data-dir: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > logMost {
		_ = os.Rename(path, path+".1")
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the log cannot be written: %w", err)
	}
	defer func() { _ = log.Close() }()  // the child has its own descriptor
	begin, _ := log.Seek(0, io.SeekEnd) // of the lines of this start
	cmd := exec.Command(self, args...)
	cmd.Env, cmd.Stderr = a.env, log // in this folder, of which flags and variables may name files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInternal, "start the mesh: %w", err)
	}
	release := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	lines := bufio.NewReader(out)
	ready, err = lines.ReadString('\n')
	if release() && err == nil {
		return strings.TrimSpace(ready), nil
	}
	_, _ = io.Copy(io.Discard, lines)
	ended := cmd.Wait()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	why := tail(path, begin)
	if why == "" && ended != nil {
		why = ended.Error()
	}
	return "", refused(toolmesh.OriginCaller, toolmesh.CodeUnavailable, "the mesh did not start: %s", cmp.Or(why, "it ended without output"))
}

// tail returns why a process ended, by what it has written to its log from an offset on: its last output without log
// lines, if any, else the last lines of the log.
func tail(path string, begin int64) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data[min(begin, int64(len(data))):])), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if text, ok := strings.CutPrefix(lines[i], "mesh: "); ok && !strings.HasPrefix(text, "warning: ") {
			return text
		}
	}
	return "log " + path + " ends with\n  " + strings.Join(lines[max(0, len(lines)-10):], "\n  ")
}
