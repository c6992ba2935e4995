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

// ErrInterrupted is the cause of a context ended by a signal.
var ErrInterrupted = errors.New("interrupted")

// Interrupts returns a context that the first SIGINT, SIGTERM or SIGHUP (unless ignored) ends with
// the cause [ErrInterrupted]. The second signal ends the process at once with status 130. stop
// restores the signals and waits; call it once.
func Interrupts(ctx context.Context) (interrupted context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
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

// OutliveReaders has writes to a stdout or stderr without a reader fail, as they do elsewhere: the Go runtime would end
// the process. A server must end its calls first also where Ctrl-C has ended the reader of its log.
func OutliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) } // not ignored: its programs would inherit that

// Interruptible returns a reader of stdin. Once ctx ends, a waiting Read returns its cause; the
// data that arrives later is lost. The goroutine of that Read ends with the process.
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
		data := make([]byte, len(p)) // the caller reuses p once it has stopped waiting
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
