package index

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unpacked is a bundle that a test places and harms.
type unpacked struct {
	dest, own, digest string
	opened            int
	bundle            bytes.Buffer
}

// placedFiles are the files of an index; withInit adds an init command.
func placedFiles(init bool) map[string]string {
	manifest := "[index]\ntools = [\"t.tool\"]\n"
	if init {
		manifest += "init = [\"sh\", \"-c\", \"true\"]\n"
	}
	return map[string]string{"conf/tools.toml": manifest, "tools.toml": "-> conf/tools.toml", "t.py": "def tool(): return 1\n", "run.sh*": "#!/bin/sh\n", "data/table.csv": "a,b\n1,2\n", "link.csv": "-> data/table.csv"}
}

func newUnpacked(t *testing.T, files map[string]string) *unpacked {
	t.Helper()
	source := t.TempDir()
	write(t, source, files)
	u := &unpacked{dest: filepath.Join(t.TempDir(), "unpacked"), own: filepath.Join(t.TempDir(), "own")}
	var err error
	if u.digest, err = Pack(t.Context(), &u.bundle, source, onDisk(t, source), map[string][]byte{LockFile: []byte("packaging==24.1\n")}); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *unpacked) open() (io.ReadCloser, error) {
	u.opened++
	return io.NopCloser(bytes.NewReader(u.bundle.Bytes())), nil
}

// place places the bundle, which must replace the folders or leave them alone. Then the
// agent's record is the bundle's.
func (u *unpacked) place(t *testing.T, name string, replaces bool) {
	t.Helper()
	u.opened = 0
	p, err := Place(t.Context(), u.dest, u.own, u.digest, u.open)
	if err != nil || p.Replaced != replaces || replaces && u.opened != 1 {
		t.Fatalf("%s: replaced %v, opened %d times, %v; want replaced %v", name, p.Replaced, u.opened, err, replaces)
	}
	if !slices.Equal(p.Manifest.Tools, []string{"t.tool"}) || string(p.Meta[LockFile]) != "packaging==24.1\n" {
		t.Errorf("%s: the tools are %q, the lock is %q", name, p.Manifest.Tools, p.Meta[LockFile])
	}
	if got, err := writeTar(t.Context(), io.Discard, u.dest, p.Files, p.Meta, defaultLimits); err != nil || got != u.digest {
		t.Errorf("%s: the folder is %s, %v, want %s", name, got, err, u.digest)
	}
}

// An existing folder is used only if it still equals the bundle, with and without an init command:
// the index's processes may have changed it.
func TestPlaceRepairsChangedFolders(t *testing.T) {
	t.Parallel()
	for _, init := range []bool{false, true} {
		u := newUnpacked(t, placedFiles(init))
		u.place(t, "nothing there", false)
		if u.opened != 1 {
			t.Fatal("nothing was unpacked")
		}
		u.place(t, "whole", false)
		if u.opened != 0 {
			t.Error("a folder that is whole was unpacked anew")
		}
		at := func(name string) string { return filepath.Join(u.dest, name) }
		away := filepath.Join(t.TempDir(), "away")
		for name, harm := range map[string]func() error{
			"truncated":         func() error { return os.Truncate(at("t.py"), 3) },
			"written to":        func() error { return os.WriteFile(at("data/table.csv"), []byte("a,b\n1,3\n"), 0o600) },
			"gone":              func() error { return os.Remove(at("t.py")) },
			"another link":      func() error { return errors.Join(os.Remove(at("link.csv")), os.Symlink("t.py", at("link.csv"))) },
			"a program now":     func() error { return os.Chmod(at("t.py"), 0o755) },
			"a file in its way": func() error { return errors.Join(os.RemoveAll(u.dest), os.WriteFile(u.dest, nil, 0o600)) },
			"half made": func() error {
				return errors.Join(os.RemoveAll(u.dest), os.MkdirAll(u.dest, 0o750), os.WriteFile(at("t.py"), []byte("def tool(): return 1\n"), 0o600))
			},
			"a link instead of its folder": func() error {
				return errors.Join(os.RemoveAll(away), os.Rename(u.dest, away), os.Symlink(away, u.dest))
			},
			"a link instead of a folder": func() error {
				return errors.Join(os.Rename(at("data"), at("other")), os.Symlink("other", at("data")))
			},
			"another manifest": func() error {
				return errors.Join(os.Remove(at("tools.toml")), os.WriteFile(at("tools.toml"), []byte("[index]\ntools = [\"t.other\"]\n"), 0o644))
			},
			"what the manifest leads to": func() error {
				return os.WriteFile(at("conf/tools.toml"), []byte("[index]\ntools = [\"t.other\"]\n"), 0o644)
			},
			"nothing of the agent's own": func() error { return os.RemoveAll(u.own) },
			"half of the agent's own":    func() error { return os.RemoveAll(filepath.Join(u.own, metaFolder)) },
			"a cut list": func() error {
				return os.WriteFile(filepath.Join(u.own, namesFile), []byte("data/table.csv\nt.py\n"), 0o600)
			},
			"no manifest of the agent's": func() error { return os.Remove(filepath.Join(u.own, manifestFolder, "tools.toml")) },
		} {
			if err := os.WriteFile(filepath.Join(u.own, "mark"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			u.place(t, name, true)
			if _, err := os.Stat(filepath.Join(u.own, "mark")); err == nil {
				t.Errorf("%s: what was noted of the folder is there after it was replaced", name)
			}
		}
	}
}

// Files next to those of a bundle stay where an init command may write. They are not part of
// the index's description, and the agent does not read them.
func TestPlaceKeepsFilesOfInit(t *testing.T) {
	t.Parallel()
	u := newUnpacked(t, placedFiles(true))
	u.place(t, "nothing there", false)
	write(t, u.dest, map[string]string{
		"__pycache__/t.cpython-311.pyc": "x", "cache.json": "{}", ".toolmesh/lock.txt": "evil==1\n", ".toolmesh/files.txt": "t.py\n", "pyproject.toml": "[project]\nrequires-python = \">=4\"\n",
		"TOOLS.yml": "tools: [t.other]\n", "not\xffUTF-8/a": "", "data/more.csv": "c\n",
	})
	p, err := Place(t.Context(), u.dest, u.own, u.digest, u.open)
	if err != nil || p.Replaced || p.Manifest.Python != "" || p.Manifest.Dependencies != "" {
		t.Errorf("replaced %v, %+v, %v", p.Replaced, p.Manifest, err)
	}
	u.place(t, "files beside it", false)
	if _, err := os.Stat(filepath.Join(u.dest, "data/more.csv")); err != nil {
		t.Error(err)
	}
}

// Without an init command no process may write there: added files, which may shadow those of
// the bundle, are removed.
func TestPlaceHasNothingBesideTheBundle(t *testing.T) {
	t.Parallel()
	u := newUnpacked(t, placedFiles(false))
	u.place(t, "nothing there", false)
	at := func(name string) string { return filepath.Join(u.dest, name) }
	for name, add := range map[string]func() error{
		"a module":          func() error { return os.WriteFile(at("json.py"), nil, 0o644) },
		"a folder":          func() error { return os.Mkdir(at("src"), 0o755) },
		"a link":            func() error { return os.Symlink("/etc/passwd", at("passwd")) },
		"what others write": func() error { return os.Chmod(at("t.py"), 0o666) },
		"a setuid program":  func() error { return os.Chmod(at("run.sh"), 0o755|os.ModeSetuid) },
		"an open folder":    func() error { return os.Chmod(at("data"), 0o777) },
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
		u.place(t, name, true)
	}
	write(t, u.dest, map[string]string{"data/__pycache__/t.cpython-311.pyc": "x"})
	u.place(t, "bytecode", false)
	if diff := cmp.Diff([]string{"conf/tools.toml", "data/table.csv", "link.csv", "run.sh", "t.py", "tools.toml"}, onDisk(t, u.dest)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// The agent's record of a bundle gives the same description as its whole folder.
func TestKeptPlaceHasTheSameDescription(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob(filepath.Join("..", "..", "examples", "indexes", "*", "tools.toml"))
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for i := range sources {
		sources[i] = filepath.Dir(sources[i])
	}
	for name, files := range map[string]map[string]string{
		"script": {"words.py": "# /// script\n# dependencies = [\"rich\"]\n# ///\ndef shout(): ...\n"},
		"entry":  {"pyproject.toml": "[project]\nname = \"x\"\nrequires-python = \">=3.10\"\n[project.entry-points.\"toolmesh.tools\"]\nf = \"a:f\"\n"},
		"legacy": {"TOOLS.yaml": "tools: [a.b]\n", "setup.py": "", "requirements.txt": strings.Repeat("# long\n", 1<<18)},
		"links":  placedFiles(true),
	} {
		dir := filepath.Join(t.TempDir(), name)
		write(t, dir, files)
		sources = append(sources, dir)
	}
	for _, dir := range sources {
		own, beside := t.TempDir(), t.TempDir()
		if err := os.CopyFS(beside, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		want, err := Load(beside)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if err := keep(beside, own, onDisk(t, beside)); err != nil {
			t.Fatal(err)
		}
		got, err := Load(filepath.Join(own, manifestFolder))
		if err != nil {
			t.Errorf("%s: %v", dir, err)
		} else if diff := cmp.Diff(want, got, cmp.AllowUnexported(Manifest{}, Tool{}, Command{}, group{}, piece{}, input{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}
