package pool

import (
	"log/slog"
	"os"
	"time"

	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/output"
)

// logged hands over a LOG frame.
func (w *worker) logged(h frame.Header, body []byte) {
	record := output.RecordOf(h.Flags, body)
	w.logMu.Lock()
	j := w.find(h.ID)
	if record.Stream == output.StreamStderr && j != nil {
		w.tail.Add(body, j.Session)
	}
	w.hand(j, record)
	w.logMu.Unlock()
}

// settleOutput hands over what bypassed sys.stdout before a call's end. From then
// on a plain function's call gets no more output. A worker of coroutines says
// whether there is anything; of plain functions we look, which is cheaper than
// to have the worker look.
func (w *worker) settleOutput(flags uint8) {
	async := w.pool.cfg.Async
	w.logMu.Lock()
	for _, pipe := range [...]*output.Pipe{w.stdout, w.stderr} {
		if pipe == nil {
			continue
		}
		if !async || flags&frame.FlagRaw != 0 {
			pipe.Flush()
		}
		pipe.Settle()
	}
	if !async {
		w.current.Store(nil)
		w.tail.Forget()
	}
	w.logMu.Unlock()
}

// only is the one running call, nil when there are none or several.
func (w *worker) only() (j *job) {
	if !w.pool.cfg.Async {
		return w.current.Load()
	}
	w.pool.read(func(*state) {
		if len(w.jobs) == 1 && w.abandoned == 0 {
			for _, j = range w.jobs {
			}
		}
	})
	return j
}

// session is that of the running calls; false when there are none, or of several.
func (w *worker) session() (session string, ok bool) {
	if !w.pool.cfg.Async {
		if j := w.current.Load(); j != nil {
			return j.Session, true
		}
		return "", false
	}
	w.pool.read(func(*state) {
		ok = w.abandoned == 0
		found := false
		for _, j := range w.jobs {
			if found && j.Session != session {
				ok = false
			}
			session, found = j.Session, true
		}
		ok = ok && found
	})
	return session, ok
}

// hand gives a record to its call's sink, or to the log. logMu is held.
func (w *worker) hand(j *job, r output.Record) {
	if j != nil && j.Sink != nil {
		j.Sink.Log(r)
		return
	}
	rpcID := ""
	if j != nil {
		rpcID = j.RPCID
	}
	w.pool.log.Debug("output of a worker", slog.String("stream", string(r.Stream)), slog.String("rpc_id", rpcID),
		slog.String("text", r.Message))
}

// capture begins to take what the worker writes to its descriptors 1 and 2.
func (w *worker) capture() (err error) {
	stdout, stderr := w.proc.Output()
	if stdout == nil {
		return nil
	}
	if w.stdout, err = w.pipe(stdout, output.StreamStdout, nil); err != nil {
		return err
	}
	if w.stderr, err = w.pipe(stderr, output.StreamStderr, w.remember); err != nil {
		return err
	}
	w.reading.Go(w.stdout.Run)
	w.reading.Go(w.stderr.Run)
	return nil
}

// pipe makes the reader of a descriptor.
func (w *worker) pipe(file *os.File, stream output.Stream, saw func(data []byte)) (*output.Pipe, error) {
	return output.NewPipe(file, &w.logMu, saw, output.NewLines(w.pool.cfg.Redact, func(text string) {
		w.hand(w.only(), output.Record{Time: time.Now(), Stream: stream, Message: text})
	}))
}

// remember adds what bypassed sys.stderr to the last words of the call whose it is.
func (w *worker) remember(data []byte) {
	if session, ok := w.session(); ok {
		w.tail.Add(data, session)
	} else {
		w.tail.Forget() // it is nobody's, or several's
	}
}

// endOutput takes the rest when the worker has ended.
func (w *worker) endOutput() {
	for _, pipe := range [...]*output.Pipe{w.stdout, w.stderr} {
		if pipe != nil {
			pipe.Close()
		}
	}
	w.reading.Wait()
}
