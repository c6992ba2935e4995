package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// Other NATS libraries take the key file of mesh session create --key, and a server configured by mesh auth
// template admits them.
func TestSessionKeysWithOtherLibraries(t *testing.T) {
	t.Parallel()
	owner := newUser(t)
	config := owner.mesh(t, 0, "auth", "template", "--nats-conf").stdout
	keys := filepath.Join(owner.home, "data", "toolmesh", "keys")
	// A program of a busy machine may take longer to send its key than servers wait by default.
	patient := strings.Replace(config, "authorization: {", "authorization: { timeout: 60", 1)
	if patient == config {
		t.Fatalf("no authorization to be changed in %s", config)
	}
	s := meshtest.Broker(t, meshtest.Config(patient))
	owner.env = append(owner.env, "MESH_NATS_URL="+s.URL)
	agent := *owner
	agent.env = append(owner.env[:len(owner.env):len(owner.env)], "MESH_NATS_NKEY="+filepath.Join(keys, "node.nk"), "MESH_AUTH_ISSUER="+filepath.Join(keys, "issuer.nk"))
	agent.agent(t, s.URL, "a")
	owner.env = append(owner.env, "MESH_NATS_NKEY="+filepath.Join(keys, "admin.nk"))
	owner.mesh(t, 0, "install", "file://"+example(t, "lab"))

	// A library that is missing, or cannot be fetched, is skipped.
	prepared := func(t *testing.T, tool, dir string, command ...string) {
		t.Helper()
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("there is no %s", tool)
		}
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%v: %s", err, out)
			}
			t.Skipf("%s: %v: %.500s", strings.Join(command, " "), err, out)
		}
	}
	// signing is a Python with nats-py and the library that it signs with.
	signing := func(t *testing.T, dir string) string {
		t.Helper()
		python, err := meshtest.Python(filepath.Join(dir, "venv"), "nats-py[nkeys]==2.16.0")
		if err != nil && os.Getenv("CI") != "" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
		return python
	}
	source, err := filepath.Abs("testdata/keys")
	if err != nil {
		t.Fatal(err)
	}
	for i, library := range []struct {
		name    string
		prepare func(t *testing.T, dir string) []string
	}{
		{"nats-py", func(t *testing.T, dir string) []string {
			return []string{signing(t, dir), filepath.Join(source, "client.py")}
		}},
		{"toolmesh", func(t *testing.T, dir string) []string {
			return []string{signing(t, dir), filepath.Join(source, "package.py")}
		}},
		{"nats.js", func(t *testing.T, dir string) []string {
			prepared(t, "npm", dir, "npm", "install", "--no-audit", "--no-fund", "nats@2.29.3")
			// Modules are found next to the file that imports them.
			program, err := os.ReadFile(filepath.Join(source, "client.mjs"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "client.mjs"), program, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			return []string{"node", filepath.Join(dir, "client.mjs")}
		}},
		{"nats.rs", func(t *testing.T, dir string) []string {
			if os.Getenv("MESH_SOAK") == "" {
				t.Skip("it is compiled for minutes: set MESH_SOAK=1")
			}
			prepared(t, "cargo", filepath.Join(source, "rust"), "cargo", "build", "--quiet", "--target-dir", dir)
			return []string{filepath.Join(dir, "debug", "client")}
		}},
	} {
		t.Run(library.name, func(t *testing.T) {
			command := library.prepare(t, t.TempDir())
			session := fmt.Sprintf("s%d", i)
			owner.mesh(t, 0, "session", "create", session, "--key")
			file := filepath.Join(owner.home, session+".nk")
			out, err := exec.CommandContext(t.Context(), command[0], append(command[1:], s.URL, file, session)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "alice") && !strings.Contains(string(out), "80") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
