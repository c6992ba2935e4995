package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func testBuild(t *testing.T, root string) *build {
	t.Helper()
	return &build{
		root: root, out: t.TempDir(), arch: runtime.GOARCH, suite: "bookworm", prefix: "localhost/toolmesh",
		version: "v1.2.3", commit: "0123456", epoch: time.Unix(1_700_000_000, 0).UTC(), log: io.Discard,
	}
}

// digests writes an image and returns the hash of all written files.
func digests(t *testing.T, b *build, img *image) map[string]string {
	t.Helper()
	if _, err := b.write(img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"image": digest.String()}
	for _, name := range []string{img.name + ".tar"} {
		f, err := os.Open(filepath.Join(b.out, name))
		if err != nil {
			t.Fatal(err)
		}
		hash, _, err := v1.SHA256(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		all[name] = hash.String()
	}
	return all
}

// checkImage checks the promises of both images and returns their files.
func checkImage(t *testing.T, b *build, img *image, a about) map[string][]byte {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(b.out, img.name))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil { // and the image in it
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := img.Digest(); err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != digest ||
		manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != b.reference(img.name) {
		t.Errorf("the layout has %+v, want %v (%v)", manifest.Manifests, digest, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, a.entrypoint) || !slices.Equal(c.Env, a.env) || c.WorkingDir != home ||
		config.OS != "linux" || config.Architecture != b.arch || !config.Created.Equal(b.epoch) {
		t.Errorf("the configuration is %+v", config)
	}
	for name, want := range map[string]string{"title": img.name, "version": b.version, "revision": b.commit, "created": "2023-11-14T22:13:20Z"} {
		if got := c.Labels["org.opencontainers.image."+name]; got != want {
			t.Errorf("the label %s is %q, want %q", name, got, want)
		}
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]byte)
	for _, layer := range layers {
		files, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, checkHeaders(t, files))
		if err := files.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// checkHeaders looks at a layer as a container engine sees it, and returns its files.
func checkHeaders(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean(h.Name)
		if all[name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg && h.Mode&0o6000 != 0 {
			t.Errorf("/%s gives rights: mode %o", name, h.Mode)
		}
		if h.Mode&0o002 != 0 && h.Typeflag != tar.TypeSymlink && (h.Typeflag != tar.TypeDir || h.Mode&0o1000 == 0) {
			t.Errorf("everyone may write /%s: mode %o", name, h.Mode)
		}
		if h.ModTime.Unix() != 0 || h.Uname+h.Gname != "" || len(h.PAXRecords) > 0 && h.PAXRecords["mtime"] != "" {
			t.Errorf("/%s has what differs between machines: %+v", name, h)
		}
	}
}

// The router's image has its documented content and nothing else, with the same digest twice.
func TestRouter(t *testing.T) {
	t.Parallel()
	b := testBuild(t, "../..")
	img, err := b.router(t.Context(), filepath.Join(t.TempDir(), "router"))
	if err != nil {
		t.Fatal(err)
	}
	first := digests(t, b, img)
	files := checkImage(t, b, img, routerAbout)

	want := []string{
		"etc", "etc/group", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt", "home", "home/toolmesh", "tmp",
		"usr", "usr/bin", "usr/bin/mesh-router",
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("the image has %q", got)
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) || bytes.Count(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN")) < 100 {
		t.Error("there are no certificates of authorities")
	}
	checkProgram(t, files["usr/bin/mesh-router"])

	other := testBuild(t, "../..")
	again, err := other.router(t.Context(), filepath.Join(t.TempDir(), "router"))
	if err != nil {
		t.Fatal(err)
	}
	if second := digests(t, other, again); !maps.Equal(first, second) {
		t.Errorf("the second time it is another image: %v, %v", first, second)
	}
}

// checkProgram checks that a program runs on its own and says its version.
func checkProgram(t *testing.T, data []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is linked dynamically")
		}
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), file, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "v1.2.3") {
		t.Errorf("--version says %q (%v)", out, err)
	}
}

// mmdebstrap removes its files when it is ended, and its first process waits for its children. Killed, it leaves them.
func TestInterruptedRootFileSystemLeavesNoFiles(t *testing.T) {
	programs, left := t.TempDir(), filepath.Join(t.TempDir(), "left")
	for name, script := range map[string]string{
		"apt-get":    "echo bookworm deb http://127.0.0.1 bookworm main",
		"apt-config": "",
		"mmdebstrap": "trap : TERM; (trap 'rm " + left + "; exit' TERM; touch " + left + "; echo begun >&2; sleep 5) & wait; wait",
	} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	b := testBuild(t, "../..")
	b.log = writer(func(said []byte) {
		if strings.Contains(string(said), "begun") {
			cancel()
		}
	})
	if _, err := b.debian(ctx, t.TempDir()); err == nil {
		t.Error("an interrupted file system is taken")
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its files are left: %v", err)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// uv of the image is the version that the agent would install.
func TestVersionOfUV(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("../../executor/internal/venv/uv.go")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`uvVersion = "([^"]+)"`).FindSubmatch(code)
	if got := uvVersion(); want == nil || got != string(want[1]) {
		t.Errorf("uv.txt has %q, the agent %q", got, want)
	}
	if n := len(regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindAll(uvRequirements, -1)); n != 2 {
		t.Errorf("uv.txt has %d hashes, want one for each architecture", n)
	}
}

// instructions are those of a Containerfile, a line each.
func instructions(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), "")
	return strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n")
}

// argument returns the argument of the last instruction of a name.
func argument(lines []string, name string) string {
	for _, line := range slices.Backward(lines) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return rest
		}
	}
	return ""
}

// The Containerfiles match this program.
func TestContainerfiles(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]about{"Containerfile.agent": agentAbout, "Containerfile.router": routerAbout} {
		lines := instructions(t, name)
		if got := strings.Fields(argument(lines, "ENV")); !slices.Equal(got, a.env) {
			t.Errorf("%s: the environment is %q, want %q", name, got, a.env)
		}
		var entrypoint []string
		if err := json.Unmarshal([]byte(argument(lines, "ENTRYPOINT")), &entrypoint); err != nil || !slices.Equal(entrypoint, a.entrypoint) {
			t.Errorf("%s: the entrypoint is %q, want %q (%v)", name, entrypoint, a.entrypoint, err)
		}
		if got := argument(lines, "USER"); got != fmt.Sprintf("%d:%d", userID, userID) {
			t.Errorf("%s: the user is %s", name, got)
		}
		if got := argument(lines, "WORKDIR"); got != home {
			t.Errorf("%s: the working directory is %s", name, got)
		}
		for label, want := range map[string]string{"title": a.title, "description": a.description, "version": "${VERSION}", "revision": "${REVISION}", "source": "https://github.com/toolmesh/toolmesh"} {
			if !strings.Contains(argument(lines, "LABEL"), "org.opencontainers.image."+label+`="`+want+`"`) {
				t.Errorf("%s: the label %s is not %q", name, label, want)
			}
		}
	}
	lines := strings.Join(instructions(t, "Containerfile.agent"), "\n")
	packages := regexp.MustCompile(`apt-get install --yes --no-install-recommends\s+([a-z0-9 -]+?)\s+&&`).FindStringSubmatch(lines)
	if packages == nil || !slices.Equal(strings.Fields(packages[1]), debianPackages) {
		t.Errorf("Containerfile.agent installs %q, want %q", packages, debianPackages)
	}
	for _, want := range []string{compilePython, passwd, group, home + " /" + dataDir, "--require-hashes"} {
		if !strings.Contains(lines, want) {
			t.Errorf("Containerfile.agent lacks %q", want)
		}
	}
}
