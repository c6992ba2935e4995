package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// An agent of DSPy in a worker uses the Go functions of the service that called it: three calls deep, and item by
// item.
func TestAnAgentCallsItsCaller(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	u := newUser(t)
	data := filepath.Join(u.home, "the-mesh")
	m := u.up(t, data)
	index, err := filepath.Abs(filepath.Join(root, "examples", "react", "index"))
	if err != nil {
		t.Fatal(err)
	}
	u.mesh(t, 0, "install", index, "--name", "react")
	service := filepath.Join(t.TempDir(), "react")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", service, "../examples/react").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), service)
	cmd.Env = append(os.Environ(), "NATS_URL="+m.url, "MESH_NATS_NKEY="+filepath.Join(data, "keys", "node.nk"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	equalJSON(t, "the agent's answer", out, `{"answer":"All of order 7 is known.","seen":[
		120,[{"line":"apple"},{"line":"pear"},{"line":"fig"}],"Completed."]}`)
}
