package process

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrInterrupted is the cause of a context that a signal ended.
var ErrInterrupted = errors.New("interrupted")

// Interrupts returns a context that the first SIGINT, SIGTERM or SIGHUP ends
// with the cause [ErrInterrupted]. The second one ends the process at once, with
// status 130. stop gives the signals back and waits; call it once.
func Interrupts(ctx context.Context) (interrupted context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
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

// Interrupted reports whether a signal ended ctx.
func Interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrInterrupted)
}
