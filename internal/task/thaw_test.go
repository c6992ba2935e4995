package task_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// runnerOn names the variable that makes TestRunnerProcess a runner on the broker there.
const runnerOn = "TOOLMESH_TEST_RUNNER_ON"

// TestRunnerProcess is a runner in a process of its own, for tests that freeze it. To each
// line it answers once it runs no task.
func TestRunnerProcess(t *testing.T) {
	url := os.Getenv(runnerOn)
	if url == "" {
		t.Skip("a process of other tests")
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := runs(t, nc, 0)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		meshtest.Until(t, "it runs no task", func() bool { return s.Running() == 0 })
		if err := nc.FlushTimeout(waitTimeout); err != nil {
			t.Fatal(err)
		}
		fmt.Println("idle")
	}
}

// process is a runner that can be frozen.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startRunner(t *testing.T, broker *meshtest.Server) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^TestRunnerProcess$"), lines: make(chan string, 64)}
	p.cmd.Env = append(os.Environ(), runnerOn+"=nats://"+broker.Address())
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-read
		_ = p.cmd.Wait()
	})
	p.says(t, "ready")
	return p
}

func (p *process) says(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(waitTimeout)
	for {
		select {
		case line := <-p.lines:
			if line == want {
				return
			}
		case <-deadline:
			t.Fatalf("the runner does not say %s", want)
		}
	}
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// A runner that was frozen while another one took its task over, and began the next
// attempt, takes nothing away from that one: when it dies, too, the task goes on.
func TestThawedRunnerLeavesTheNextAttempt(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.fails["x"] = 1
	d.serve(t, broker.Connect(t), host.Options{})
	first := startRunner(t, broker)
	handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", "x", nil)
	d.starts(t, "x")
	becomes(t, handle, codec.TaskRunning)
	first.signal(t, syscall.SIGSTOP)
	other := broker.Connect(t)
	second := runs(t, other, 0)
	meshtest.Until(t, "the second runner has the task", func() bool { return second.Running() == 1 })
	d.gate("x") <- struct{}{} // the first attempt ends, and fails
	d.starts(t, "x")
	c := calls(t, broker.Connect(t), "")
	meshtest.Until(t, "the second attempt is noted", func() bool {
		raw := recordOf(t, broker.Connect(t), handle.ID())
		return raw.Attempts == 2 && raw.State == codec.TaskRunning
	})
	if err := second.Sweep(t.Context()); err != nil { // no later sweep repairs it
		t.Fatal(err)
	}
	first.signal(t, syscall.SIGCONT)
	if _, err := io.WriteString(first.in, "idle?\n"); err != nil {
		t.Fatal(err)
	}
	first.says(t, "idle")
	other.Close()
	close(d.gate("x"))
	succeeds(t, c.Task(handle.ID()), "waited x")
}

// record is the part of a stored task that tests read.
type record struct {
	codec.Task
	Runner string `json:"runner"`
}

func recordOf(t testing.TB, nc *nats.Conn, id subjects.RPCID) (r record) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subjects.BucketTaskState)
	if err != nil {
		t.Fatal(err)
	}
	key, err := subjects.TaskKey(subjects.DefaultSession, id)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(t.Context(), key)
	if err == nil {
		err = json.Unmarshal(entry.Value(), &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Of two runners that have one message the one that is later with the end of an attempt
// leaves the message to the other, and so the next attempt is made.
func TestLaterRunnerLeavesTheMessage(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.fails["x"] = 1
	d.serve(t, broker.Connect(t), host.Options{})
	nc := broker.Connect(t)
	first, second := runs(t, broker.Connect(t), 0), runs(t, broker.Connect(t), 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), subjects.StreamTasks, "normal-0")
	if err != nil {
		t.Fatal(err)
	}
	config := consumer.CachedInfo().Config
	config.AckWait = time.Second // less than a runner takes to say that it is there
	if _, err := js.UpdateConsumer(t.Context(), subjects.StreamTasks, config); err != nil {
		t.Fatal(err)
	}
	handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", "x", nil)
	d.starts(t, "x")
	became := becomes(t, handle, codec.TaskRunning)
	runner := recordOf(t, nc, became.ID).Runner
	meshtest.Until(t, "both have it", func() bool {
		return first.Running()+second.Running() == 2 && recordOf(t, nc, became.ID).Runner != runner
	})
	d.gate("x") <- struct{}{} // the first attempt ends, and fails
	meshtest.Until(t, "the next attempt begins", func() bool {
		if queued(t, nc) == 0 {
			t.Fatal("the message is gone before the task has ended")
		}
		return d.count("x") == 2
	})
	close(d.gate("x"))
	succeeds(t, handle, "waited x")
}
