package process

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrInterrupted is the cause of a context that a signal ended.
var ErrInterrupted = errors.New("interrupted")

// Interrupts returns a context that the first SIGINT, SIGTERM or SIGHUP ends, unless the last is
// ignored, with the cause [ErrInterrupted]. The second one ends the process at once, with
// status 130. stop gives the signals back and waits; call it once.
func Interrupts(ctx context.Context) (interrupted context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-signals:
				if n > 0 {
					os.Exit(StatusInterrupted)
				}
				cancel(ErrInterrupted)
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
		cancel(nil)
	}
}

// Interruptible returns a reader of stdin that waits no longer once ctx has ended: its error
// is then the cause of that. The goroutine of a Read that waits ends with the process, and
// what it gets is lost.
func Interruptible(ctx context.Context, stdin io.Reader) io.Reader {
	return &interruptible{ctx, stdin}
}

type interruptible struct {
	ctx  context.Context //nolint:containedctx // a reader's methods have none
	from io.Reader
}

func (r *interruptible) Read(p []byte) (int, error) {
	type read struct {
		data []byte
		err  error
	}
	got := make(chan read, 1)
	go func() {
		data := make([]byte, len(p)) // p is the caller's again once it has stopped waiting
		n, err := r.from.Read(data)
		got <- read{data[:n], err}
	}()
	select {
	case r := <-got:
		return copy(p, r.data), r.err
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

// Interrupted reports whether a signal ended ctx.
func Interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrInterrupted)
}
