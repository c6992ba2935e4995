package k8s

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
)

// connect makes a client with a caller's key, by the address of the Service nats.
func (r *rig) connect(t *testing.T) *client.Client {
	t.Helper()
	service, err := r.CoreV1().Services(namespace).Get(t.Context(), "nats", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, err := nats.NkeyOptionFromSeed(filepath.Join(r.home, "k8s/credentials/keys/caller.nk"))
	if err != nil {
		t.Fatal(err)
	}
	_, c := callOn(t, "nats://"+service.Spec.ClusterIP+":4222", key, nats.CustomInboxPrefix(subjects.SharedInbox))
	return c
}

// callOn connects to a NATS server and makes a client on the connection.
func callOn(t *testing.T, url string, options ...nats.Option) (*nats.Conn, *client.Client) {
	t.Helper()
	nc, err := nats.Connect(url, append(client.ConnectOptions(), options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c, err := client.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return nc, c
}

// load is the continuous load of a client of ours: calls of an idempotent tool, streams and durable tasks. Each must
// succeed.
type load struct {
	client *client.Client
	begun  time.Time
	stop   context.CancelFunc
	tasks  sync.WaitGroup // the goroutines

	mu        sync.Mutex
	calls     int
	busy      int            // answers that all slots were taken
	streams   int            // that ended with all of their items
	cut       map[string]int // those that ended with an error, by its code
	submitted []handedIn
	refused   int // times that a task was not taken, and was handed in again under the same id
	slowest   time.Duration
	failures  []string
}

// handedIn is a submitted task with its expected result.
type handedIn struct {
	task *client.Task
	want int
}

// startLoad begins the load.
func startLoad(t *testing.T, c *client.Client) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{client: c, begun: time.Now(), stop: cancel, cut: make(map[string]int)}
	t.Cleanup(func() {
		cancel()
		l.tasks.Wait()
	})
	loop := func(one func(n int)) {
		l.tasks.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				one(n)
			}
		})
	}
	for range 4 {
		loop(l.call)
	}
	for range 2 {
		loop(l.stream)
	}
	loop(func(n int) {
		l.submit(n)
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	})
	return l
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Sprintf("%.1f s: ", time.Since(l.begun).Seconds())+fmt.Sprintf(format, args...))
}

// more repeats a number of concurrent calls of a duration in milliseconds until it is stopped.
func (l *load) more(n, ms int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for i := range n {
		loops.Go(func() {
			for ctx.Err() == nil {
				l.echo(i, ms)
			}
		})
	}
	return func() {
		cancel()
		loops.Wait()
	}
}

func (l *load) call(n int) { l.echo(n, 20) }

// echo makes a call, which the end of the load does not cut off. It repeats busy calls, because backpressure is not a
// failure.
func (l *load) echo(n, ms int) {
	at := time.Now()
	again := func() (*client.Result, error) {
		return l.client.Call(context.Background(), "load.work.echo", map[string]int{"n": n, "ms": ms}, client.WithTimeout(time.Minute))
	}
	result, err := again()
	for toolmesh.CodeOf(err) == toolmesh.CodeBusy && time.Since(at) < time.Minute {
		l.mu.Lock()
		l.busy++
		l.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		result, err = again()
	}
	var got int
	if err == nil {
		err = result.Decode(&got)
	}
	if err != nil || got != n {
		l.fail("call %d after %v: %d, %v", n, time.Since(at), got, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.slowest = max(l.slowest, time.Since(at))
}

func (l *load) stream(int) {
	const items = 40
	next := 0
	var failed error
	for chunk, err := range l.client.Stream(context.Background(), "load.work.count", map[string]int{"n": items, "ms": 50}, client.WithTimeout(time.Minute)) {
		if err != nil {
			failed = err
			break
		}
		var got int
		if err := chunk.Decode(&got); err != nil || got != next {
			l.fail("stream: item %d is %d, %v", next, got, err)
			return
		}
		next++
	}
	var typed *toolmesh.Error
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case failed == nil && next == items:
		l.streams++
	case errors.As(failed, &typed) && typed.Code != toolmesh.CodeDeadlineExceeded:
		l.cut[string(typed.Code)]++
	default:
		l.failures = append(l.failures, fmt.Sprintf("stream: ended after %d of %d items with %v", next, items, failed))
	}
}

// submit submits a task until the mesh has it: one id is one task.
func (l *load) submit(n int) {
	id := subjects.NewRPCID("task")
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		task, err := l.client.Submit(ctx, "load.work.job", map[string]int{"n": n, "ms": 400}, &client.SubmitOptions{ID: id, Attempts: 20})
		cancel()
		l.mu.Lock()
		if err == nil {
			l.submitted = append(l.submitted, handedIn{task, n})
			l.mu.Unlock()
			return
		}
		l.refused++
		l.mu.Unlock()
		if time.Now().After(deadline) {
			l.fail("task %d is not taken: %v", n, err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// mark is the progress of a load, to see that it continues.
func (l *load) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// goesOn waits until calls that began now are answered.
func (l *load) goesOn(t *testing.T) {
	t.Helper()
	from := l.mark()
	until(t, "calls go on", func() (int, error) { return l.mark(), nil }, func(n int) bool { return n > from+20 })
}

// settle ends the load and checks each call, stream and task.
func (l *load) settle(t *testing.T) {
	t.Helper()
	l.stop()
	l.tasks.Wait()
	for _, of := range l.submitted {
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		result, err := of.task.Wait(ctx)
		cancel()
		var got int
		if err == nil {
			err = result.Decode(&got)
		}
		if err != nil || got != of.want {
			t.Errorf("task %s: %d, want %d: %v", of.task.ID(), got, of.want, err)
		}
	}
	for _, f := range l.failures {
		t.Error(f)
	}
	t.Logf("in %v: %d calls, the slowest %v, %d times told to come back; %d streams whole, cut %v; %d tasks, %d times not taken at once",
		time.Since(l.begun).Round(time.Second), l.calls, l.slowest.Round(time.Millisecond), l.busy, l.streams, l.cut, len(l.submitted), l.refused)
}
