package zygote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// channels makes a process that is nothing but its channels: theirs are the worker's
// ends.
func channels(t *testing.T) (p *Process, theirs []*os.File) {
	t.Helper()
	p, theirs, err := newProcess(7)
	if err != nil {
		t.Fatal(err)
	}
	p.page.Sent()
	p.zygote = &zygote{workers: map[uint64]*Process{7: p}}
	p.handle = sandbox.NewHandle(-1, 0)
	return p, theirs
}

// Write does not wait for the worker to read, and nothing is lost or turned round.
func TestWriteNeverBlocks(t *testing.T) {
	p, theirs := channels(t)
	defer sandbox.CloseAll(theirs)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // far more than a pipe holds
	for part := range 1 << 7 {
		p.Write(want[part*1<<14 : (part+1)*1<<14])
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(theirs[0], got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v; as it was written: %v", err, bytes.Equal(got, want))
	}
	p.Write([]byte("more"))
	if _, err := io.ReadFull(theirs[0], got[:4]); err != nil || string(got[:4]) != "more" {
		t.Errorf("got %q, %v", got[:4], err)
	}
	p.exited(sandbox.Exit{})
	p.Close()
	p.Write([]byte("after the end")) // which is not read
}

// A process that reads nothing gets no more memory than results of many calls take.
func TestProcessThatDoesNotReadIsKilled(t *testing.T) {
	defer func(before int) { maxUnread = before }(maxUnread)
	maxUnread = 8 << 20
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(sleeper.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, theirs := channels(t)
	defer sandbox.CloseAll(theirs)
	p.handle = sandbox.NewHandle(fd, sleeper.Process.Pid)
	piece := make([]byte, maxUnread/8)
	for range 10 {
		p.Write(piece)
	}
	_ = sleeper.Wait() // for ever, if it is not killed
	if status, _ := sleeper.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended by %v", sleeper.ProcessState)
	}
	p.exited(sandbox.Exit{Lost: true})
	p.Close()
}

// Where the agent has no descriptors left, no worker is started, and the agent goes on.
func TestNoDescriptorsAreLeft(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(null.Fd())
	_ = null.Close()
	for left := range 9 { // of the pipes and the page
		limited := unix.Rlimit{Cur: lowest + uint64(left), Max: before.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limited); err != nil {
			t.Fatal(err)
		}
		_, _, err := newProcess(7)
		if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); restored != nil {
			t.Fatal(restored)
		}
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("with %d descriptors: %v", left, err)
		}
	}
}

// Unwritten data is dropped when the process is closed.
func TestCloseEndsAWrite(t *testing.T) {
	p, theirs := channels(t)
	defer sandbox.CloseAll(theirs)
	p.Write(make([]byte, 1<<20))
	p.exited(sandbox.Exit{Lost: true})
	p.Close()
	if !p.Exit().Lost {
		t.Errorf("exit: %v", p.Exit())
	}
}

// A read gets the process's output and then ends, even if a process that it left behind holds the
// other end of the pipe.
func TestAReadEndsWithTheProcess(t *testing.T) {
	for _, eager := range []bool{false, true} {
		p, theirs := channels(t)
		p.Eager(eager)
		if _, err := theirs[1].WriteString("last words"); err != nil {
			t.Fatal(err)
		}
		p.exited(sandbox.Exit{Code: 3})
		<-p.Done()
		got, err := io.ReadAll(p)
		if string(got) != "last words" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %q, %v", got, err)
		}
		p.Close()
		sandbox.CloseAll(theirs)
	}
}

// An eager read returns data at once, waits if there is none, and ends with the stream.
func TestEagerReads(t *testing.T) {
	p, theirs := channels(t)
	var sent sync.WaitGroup
	sent.Go(func() {
		for i := range 2000 {
			_, _ = theirs[1].Write([]byte{byte(i)})
		}
		sandbox.CloseAll(theirs)
	})
	b := make([]byte, 100)
	next := 0
	for {
		p.Eager(next%3 != 0)
		n, err := p.Read(b)
		for _, got := range b[:n] {
			if got != byte(next) {
				t.Fatalf("byte %d is %d", next, got)
			}
			next++
		}
		if err != nil {
			if !errors.Is(err, io.EOF) || next != 2000 {
				t.Errorf("%v after %d bytes", err, next)
			}
			break
		}
	}
	sent.Wait()
	p.exited(sandbox.Exit{})
	p.Close()
}

func TestPlacesAreBounded(t *testing.T) {
	s := NewStarter(nil, Options{})
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var leave func()
	for range cap(s.starting) {
		var err error
		if leave, err = s.Slot(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := s.Slot(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("one more place than there are: %v", err)
	}
	leave()
	if _, err := s.Slot(t.Context()); err != nil {
		t.Error(err)
	}
}

// A waiter for the end of a killed worker that its zygote has not reported learns at Close that
// no report will come.
func TestClosedBeforeItsEndIsKnown(t *testing.T) {
	t.Parallel()
	p, theirs := channels(t)
	sandbox.CloseAll(theirs)
	p.Close()
	p.zygote.lostAll()
	select {
	case <-p.Done():
		if want := (sandbox.Exit{Lost: true}); p.Exit() != want {
			t.Errorf("its end: %v, want %v", p.Exit(), want)
		}
	default:
		t.Error("its end is not known")
	}
}
