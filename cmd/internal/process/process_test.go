package process

import (
	"os"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh"
)

func TestFolderHasOneUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := OpenFolder(dir); err == nil {
		_ = second.Close()
		t.Error("a folder in use was opened a second time")
	}
	id, err := first.NodeID("")
	if err != nil || id == "" {
		t.Fatalf("node id %q, %v", id, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenFolder(dir)
	if err != nil {
		t.Fatalf("a folder that was given back: %v", err)
	}
	defer again.Close() //nolint:errcheck // the test is over
	if same, err := again.NodeID(""); err != nil || same != id {
		t.Errorf("node id after a restart = %q, %v, want %q", same, err, id)
	}
}

func TestInterrupts(t *testing.T) {
	ctx, stop := Interrupts(t.Context())
	if Interrupted(ctx) {
		t.Error("interrupted before any signal")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if !Interrupted(ctx) {
		t.Error("a signal is not what ended the context")
	}
	stop()
}

func TestStatus(t *testing.T) {
	t.Parallel()
	ones := map[toolmesh.Code]bool{
		toolmesh.CodeToolError: true, toolmesh.CodeInvalidArguments: true, toolmesh.CodeResultNotSerializable: true,
		toolmesh.CodeDeadlineExceeded: true, toolmesh.CodeCancelled: true, toolmesh.CodePayloadTooLarge: true,
		toolmesh.CodeInstallFailed: true, toolmesh.CodeWorkerCrashed: true, toolmesh.CodeWorkerOutOfMemory: true,
	}
	for _, code := range toolmesh.Codes() {
		want := 3
		if ones[code] {
			want = 1
		}
		if got := Status(code); got != want {
			t.Errorf("Status(%s) = %d, want %d", code, got, want)
		}
	}
}
