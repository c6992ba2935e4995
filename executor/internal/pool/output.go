package pool

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
)

// logged passes a LOG frame on.
func (w *worker) logged(h frame.Header, body []byte) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	j := w.find(h.ID)
	budget := &w.budget
	if j != nil {
		budget = &j.budget
	}
	if *budget == nil {
		*budget = output.NewBudget(2) // a worker keeps to half of it, unless code of the index writes its frames
	}
	if !(*budget).AllowN(time.Now(), len(body)) {
		return
	}
	record := output.RecordOf(h.Flags, body)
	if record.Stream == output.StreamStderr && j != nil {
		w.tail.Add(body, j.Session)
	}
	w.hand(j, record)
}

// settleOutput passes on output that bypassed sys.stdout before a call's end. A worker of coroutines
// reports whether there is any; for plain functions the pool looks itself, which is cheaper. logMu
// is held.
func (w *worker) settleOutput(flags uint8) {
	async := w.pool.cfg.Async
	for _, pipe := range w.pipes {
		pipe.Settle(!async || flags&frame.FlagRaw != 0)
	}
	if !async {
		w.tail.Forget()
	}
}

// writers are the running calls, one of which has written past sys.stdout. It returns none if
// abandoned calls may still run.
func (w *worker) writers() (jobs []*job) {
	w.pool.read(func(*state) {
		if w.abandoned == 0 {
			jobs = w.running()
		}
	})
	return jobs
}

// hand passes a record to its call's sink, or to the log. logMu is held.
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

// capture starts reading the worker's descriptors 1 and 2.
func (w *worker) capture() error {
	stdout, stderr := w.proc.Output()
	if stdout == nil {
		return nil
	}
	return errors.Join(w.read(stdout, output.StreamStdout, nil), w.read(stderr, output.StreamStderr, w.remember))
}

// read starts reading a descriptor.
func (w *worker) read(file *os.File, stream output.Stream, saw func(data []byte)) error {
	pipe, err := output.NewPipe(file, &w.logMu, saw, output.NewLines(w.pool.cfg.Redact, func(text string) {
		var j *job
		if jobs := w.writers(); len(jobs) == 1 {
			j = jobs[0]
		}
		w.hand(j, output.Record{Time: time.Now(), Stream: stream, Message: text})
	}))
	if err == nil {
		w.pipes = append(w.pipes, pipe)
		w.reading.Go(pipe.Run)
	}
	return err
}

// remember adds output that bypassed sys.stderr to the last words of its call.
func (w *worker) remember(data []byte) {
	jobs := w.writers()
	if len(jobs) == 0 || slices.ContainsFunc(jobs, func(j *job) bool { return j.Session != jobs[0].Session }) {
		w.tail.Forget() // it belongs to no session or to several
	} else {
		w.tail.Add(data, jobs[0].Session)
	}
}

// endOutput reads the rest after the worker has ended.
func (w *worker) endOutput() {
	for _, pipe := range w.pipes {
		pipe.Close()
	}
	w.reading.Wait()
}
