package executor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// startUp is start-up code of an environment: it leaves marks, reads files of the agent, and
// records its process.
const startUp = `
def _start_up():
    import os, sys
    def tried(path, mode):
        try:
            with open(path, mode) as file:
                file.write(" ".join(sys.argv)) if mode == "a" else file.read()
            return True
        except OSError:
            return False
    def link(fd):
        try:
            return os.readlink("/proc/self/fd/" + fd)
        except OSError:
            return "/"  # what lists them
    def status(name):
        with open("/proc/self/status") as file:
            return next(line.split()[1] for line in file if line.startswith(name + ":"))
    note = [os.getuid(), status("NoNewPrivs"), status("CapEff"), tried("%[1]s/trap", "a"), tried("%[1]s/admin.nk", "r"),
        [one for one in os.listdir("/proc/self/fd") if int(one) > 3 and not os.path.exists(link(one))]]
    sys.noted = getattr(sys, "noted", []) + [note]
_start_up()
`

// A library that is loaded before an interpreter begins, and does the same.
const preloaded = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
	FILE *file = fopen("%[1]s/trap", "a");
	if (file != NULL) { fprintf(file, "preloaded by %%d", (int)getuid()); fclose(file); }
	char text[100] = "";
	snprintf(text, sizeof text, "%%d", (int)getuid());
	setenv("LOADED_BY", text, 1);
}
`

const startedTools = `
import os, subprocess, sys, threading

if %[1]s:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def started() -> list:
    """What start-up code noted, and what programs of the environment say."""
    run = lambda *argv: subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    return [getattr(sys, "noted", []), os.getuid(), sys.prefix, sys.executable, os.environ.get("LOADED_BY", ""),
        run(sys.executable, "-c", "import sys, helper; print(sys.prefix, helper.VALUE)"), run(sys.executable, "-m", "helper"), run("helper-script")]
`

// A plant puts start-up code into an environment. It returns variables of the index.
type plant func(t *testing.T, env *executor.Env, packages, keys string) map[string]string

func planted(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.RemoveAll(file), os.WriteFile(file, []byte(text), 0o755)); err != nil { //nolint:gosec // others read it
		t.Fatal(err)
	}
}

var plants = map[string]plant{
	"pth": func(t *testing.T, _ *executor.Env, packages, keys string) map[string]string {
		t.Helper()
		planted(t, filepath.Join(packages, "early.py"), fmt.Sprintf(startUp, keys))
		planted(t, filepath.Join(packages, "early.pth"), "import early\n")
		return nil
	},
	"sitecustomize": func(t *testing.T, env *executor.Env, packages, keys string) map[string]string {
		t.Helper()
		if own, _ := filepath.Glob(filepath.Dir(filepath.Dir(env.Base)) + "/lib/python3.*/sitecustomize.py"); len(own) > 0 {
			t.Skip("the machine's interpreter has one that comes first")
		}
		planted(t, filepath.Join(packages, "sitecustomize.py"), fmt.Sprintf(startUp, keys))
		return nil
	},
	"standard library": func(t *testing.T, env *executor.Env, _, keys string) map[string]string {
		t.Helper()
		lib := "lib/python" + strings.Join(strings.Split(env.Version, ".")[:2], ".")
		real, fake := filepath.Join(filepath.Dir(filepath.Dir(env.Base)), lib), filepath.Join(env.Dir, "other")
		entries, err := os.ReadDir(real)
		if err != nil {
			t.Skip(err)
		}
		for _, dir := range []string{filepath.Join(fake, lib), filepath.Join(fake, "bin")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, entry := range entries {
			if entry.Name() != "os.py" && entry.Name() != "__pycache__" {
				if err := os.Symlink(filepath.Join(real, entry.Name()), filepath.Join(fake, lib, entry.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		code, err := os.ReadFile(filepath.Join(real, "os.py"))
		if err != nil {
			t.Fatal(err)
		}
		planted(t, filepath.Join(fake, lib, "os.py"), string(code)+fmt.Sprintf(strings.ReplaceAll(startUp, "import os, sys", "import sys; os = sys.modules[__name__]"), keys))
		planted(t, filepath.Join(env.Dir, "pyvenv.cfg"), "home = "+filepath.Join(fake, "bin")+"\ninclude-system-site-packages = false\nversion = "+env.Version+"\n")
		return nil
	},
	"interpreter": func(t *testing.T, env *executor.Env, _, keys string) map[string]string {
		t.Helper()
		planted(t, env.Python, "#!/bin/sh\necho \"$@\" 2>/dev/null >> "+keys+"/trap\nexec "+env.Dir+"/bin/python3 \"$@\"\n")
		return nil
	},
	"preloaded": func(t *testing.T, env *executor.Env, _, keys string) map[string]string {
		t.Helper()
		compiler, err := exec.LookPath("cc")
		if err != nil {
			t.Skip("no compiler here")
		}
		source, made := filepath.Join(t.TempDir(), "p.c"), filepath.Join(env.Dir, "p.so")
		planted(t, source, fmt.Sprintf(preloaded, keys))
		if out, err := exec.CommandContext(t.Context(), compiler, "-shared", "-fPIC", "-o", made, source).CombinedOutput(); err != nil {
			t.Skipf("nothing can be compiled: %v: %s", err, out)
		}
		return map[string]string{"LD_PRELOAD": made}
	},
}

// No process of the agent runs start-up code of an environment before it is confined; then the
// code runs, as in any environment.
func TestStartUpCodeRunsConfined(t *testing.T) {
	t.Parallel()
	type row struct {
		plant string
		level sandbox.Level
		box   tool.Sandbox
		users string
	}
	var rows []row
	for name := range plants {
		rows = append(rows, row{name, sandbox.LevelPID, tool.SandboxGuard, "each"})
	}
	// The level does not depend on the plant, except for variables.
	rows = append(rows,
		row{"pth", sandbox.LevelPID, tool.SandboxStrict, "each"}, row{"pth", sandbox.LevelPID, tool.SandboxOffline, "each"}, row{"pth", sandbox.LevelPID, tool.SandboxGuard, ""},
		row{"pth", sandbox.LevelUser, tool.SandboxGuard, ""}, row{"pth", sandbox.LevelUser, tool.SandboxGuard, "each"},
		row{"pth", sandbox.LevelReaper, tool.SandboxGuard, "each"}, row{"preloaded", sandbox.LevelReaper, tool.SandboxStrict, ""})
	for _, c := range rows {
		t.Run(fmt.Sprintf("%s %s %s %s", c.plant, c.level, c.box, c.users), func(t *testing.T) {
			t.Parallel()
			startUpConfined(t, c.plant, c.level, c.box, c.users)
		})
	}
}

func startUpConfined(t *testing.T, name string, level sandbox.Level, box tool.Sandbox, users string) {
	if (users != "" || level == sandbox.LevelPID) && os.Geteuid() != 0 {
		t.Skip("not root")
	}
	if level == sandbox.LevelReaper && !landlocked() {
		t.Skip("the kernel has no Landlock")
	}
	data := t.TempDir()
	keys := filepath.Join(data, "keys")
	planted(t, filepath.Join(keys, "admin.nk"), "secret")
	if err := errors.Join(os.Chmod(keys, 0o700), os.Chmod(filepath.Dir(data), 0o755), os.Chmod(data, 0o755)); err != nil { //nolint:gosec // others pass
		t.Fatal(err)
	}
	environ := os.Environ()
	if level == sandbox.LevelReaper && users != "" {
		environ = []string{"PATH=/usr/bin:/bin"} // an interpreter that other users reach
	}
	meshtest.Warm(filepath.Join(data, "executor"), t.Cleanup)
	o := &executor.Options{
		Environ: environ, Logger: testLogger(t), Sandbox: box, Users: users, Sealed: data, Shown: []string{filepath.Join(data, "indexes")},
	}
	o.SetLevels(level)
	x, err := executor.New(filepath.Join(data, "executor"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	if got, why := x.Sandbox(); got != box && level != sandbox.LevelReaper {
		t.Skipf("%v", why)
	}
	for _, unforked := range []bool{false, true} {
		dir := filepath.Join(data, "indexes", fmt.Sprint(unforked))
		planted(t, filepath.Join(dir, "t.py"), fmt.Sprintf(startedTools, map[bool]string{true: "True", false: "False"}[unforked]))
		env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{Account: fmt.Sprint(unforked), Own: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		packages, _ := filepath.Glob(filepath.Join(env.Dir, "lib", "python*", "site-packages"))
		planted(t, filepath.Join(packages[0], "helper.py"), "VALUE = 7\nif __name__ == '__main__': print('as a module')\n")
		planted(t, filepath.Join(env.Dir, "bin", "helper-script"), "#!"+env.Python+"\nimport helper; print(helper.VALUE)\n")
		vars := plants[name](t, env, packages[0], keys)
		ix := open(t, x, executor.Spec{Name: "a", SourceDir: dir, Env: env, Tools: []string{"t.started"}, Vars: vars})
		for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationFresh} {
			body, err := ix.Call(t.Context(), executor.Call{Tool: "t.started", Isolation: isolation}, nil)
			if err != nil {
				t.Fatalf("%s: %v %s", isolation, err, toolmesh.AsError(err).Stacktrace)
			}
			checkStarted(t, name, string(isolation), env, body)
		}
		commands, err := x.OpenCommands(executor.Spec{Name: "a", SourceDir: dir, Env: env, Vars: vars})
		if err != nil {
			t.Fatal(err)
		}
		body, err := commands.Call(t.Context(), program.Call{Tool: "c", Argv: []string{"python", "-c", "import json, t; print(json.dumps(t.started()))"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkStarted(t, name, "command", env, body)
		if trap, err := os.ReadFile(filepath.Join(keys, "trap")); err == nil {
			t.Errorf("it ran before it was confined: %q", trap)
		}
	}
}

// checkStarted checks the report of a tool.
func checkStarted(t *testing.T, plant, who string, env *executor.Env, body json.RawMessage) {
	t.Helper()
	var noted [][]any
	var user int
	var prefix, executable, loaded, started, module, script string
	if err := json.Unmarshal(body, &[]any{&noted, &user, &prefix, &executable, &loaded, &started, &module, &script}); err != nil {
		t.Fatalf("%s: %s: %v", who, body, err)
	}
	if prefix != env.Dir || filepath.Dir(executable) != filepath.Dir(env.Python) || started != env.Dir+" 7" || module != "as a module" || script != "7" {
		t.Errorf("%s: the environment is not the tool's: %s", who, body)
	}
	if (plant == "pth" || plant == "sitecustomize") && len(noted) == 0 {
		t.Errorf("%s: no start-up code ran", who)
	}
	for _, note := range noted {
		if fds, _ := note[5].([]any); note[0] != float64(user) || note[1] != "1" || note[3] != false || note[4] != false || who == "fresh" && len(fds) > 0 {
			t.Errorf("%s: start-up code ran as %v", who, note)
		}
	}
	if plant == "preloaded" && loaded != fmt.Sprint(user) {
		t.Errorf("%s: the library was loaded by %q, want %d", who, loaded, user)
	}
}

// A command of an installation, too, has the environment's start-up files run confined.
func TestStartUpCodeOfAnInstallationRunsConfined(t *testing.T) {
	t.Parallel()
	for name, plant := range plants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			keys, dir := filepath.Join(data, "keys"), filepath.Join(data, "indexes", "a")
			planted(t, filepath.Join(keys, "admin.nk"), "secret")
			planted(t, filepath.Join(dir, "t.py"), "")
			x, err := executor.New(filepath.Join(data, "executor"), &executor.Options{Environ: os.Environ(), Users: "each", Sealed: data})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			})
			if level, why := x.Sandbox(); level != tool.SandboxGuard {
				t.Skip(why)
			}
			env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{Account: "a", Own: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			packages, _ := filepath.Glob(filepath.Join(env.Dir, "lib", "python*", "site-packages"))
			vars := plant(t, env, packages[0], keys)
			said := x.Command(t.Context(), env, "a", dir, []string{"python", "-c", "import sys; sys.exit(f'noted {getattr(sys, \"noted\", [])}')"}, vars, nil, executor.Given{})
			if said == nil || !strings.Contains(fmt.Sprint(toolmesh.AsError(said).Details, said), "noted [") {
				t.Errorf("the command did not run: %v", said)
			}
			if trap, err := os.ReadFile(filepath.Join(keys, "trap")); err == nil {
				t.Errorf("it ran before it was confined: %q", trap)
			}
		})
	}
}

// An index with folders of its own begins as a copy, too, in each level.
func TestAnIndexWithFoldersIsACopy(t *testing.T) {
	t.Parallel()
	for _, box := range []tool.Sandbox{tool.SandboxGuard, tool.SandboxStrict} {
		log := &logged{}
		dir := writeFiles(t, map[string]string{"t.py": "import sys\ndef f(path: str) -> list:\n    open(path + '/made', 'w').close()\n    return [open(path + '/file').read(), 'xml.dom.minidom' in sys.modules]\n"})
		x := newExecutor(t, func(o *executor.Options) {
			o.Sandbox, o.Users, o.Logger, o.Sealed = box, "each", log.logger(), filepath.Dir(dir)
		})
		if level, why := x.Sandbox(); level != box {
			t.Skip(why)
		}
		given, err := os.MkdirTemp("", "given-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(given) })
		planted(t, filepath.Join(given, "file"), "given")
		spec := specOf(t, x, dir, "t.f")
		if spec.Paths, _, err = x.Paths("test", []executor.Path{{Path: given, Write: true}}, nil); err != nil {
			t.Fatal(err)
		}
		mustCall(t, open(t, x, spec), "t.f", fmt.Sprintf(`{"path":%q}`, given), `["given",true]`)
		if log.has("starts an interpreter of its own") {
			t.Errorf("%s: it is no copy", box)
		}
	}
}

// Output of a command of an installation costs the agent a bounded amount of memory.
func TestOutputOfAnInstallationIsBounded(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	if level, why := x.Sandbox(); level == tool.SandboxNone {
		t.Skip(why)
	}
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": ""}), "t.f")
	for _, c := range []struct{ code, part string }{
		{"import os\nwhile True: os.write(1, bytes(1 << 20))", "it wrote more than 67108864 bytes"},
		{"import os, sys\nfor _ in range(9): os.write(2, b'x' * (1 << 20))\nsys.exit('the end')", "the end"},
	} {
		err := x.Command(t.Context(), spec.Env, "test", spec.SourceDir, []string{"python", "-c", c.code}, nil, nil, executor.Given{})
		if text := fmt.Sprint(err, toolmesh.AsError(err).Details); err == nil || !strings.Contains(text, c.part) || len(text) > 4<<20 {
			t.Errorf("%d bytes: %.300s", len(text), text)
		}
	}
}
