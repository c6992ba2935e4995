//go:build unix

package client_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A caller that was stopped, or on a machine that slept, has received no messages meanwhile. That
// does not mean that its node is lost.
func TestFrozenCaller(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), callerEnv+"="+broker.URL)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait(t, "start", d.gate("frozen").started)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen := time.NewTimer(4 * time.Second)
	defer frozen.Stop()
	<-frozen.C
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// Long enough for a wrong verdict, if there is one.
	thawed := time.NewTimer(4 * time.Second)
	defer thawed.Stop()
	<-thawed.C
	d.gate("frozen").release <- struct{}{}
	if err := cmd.Wait(); err != nil || out.String() != "ok\n" {
		t.Errorf("the caller says %q, %v", out.String(), err)
	}
}
