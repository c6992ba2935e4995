package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// startScript runs in the agent's image: read-only, as its user, with nothing of the network
// but loopback, and process 1 that of the image.
const startScript = `
mesh-agent --version
mesh version
git --version
ssh -V 2>&1
uv --version
python3 -m venv /tmp/venv
/tmp/venv/bin/python -c 'import sqlite3, ssl, sys, zoneinfo; print(sys.version, zoneinfo.ZoneInfo("Europe/Oslo"), ssl.create_default_context().cert_store_stats())'
if python3 -v -c 'import asyncio, json' 2>&1 | grep -E "bytecode is stale|code object from .*[.]py'"; then echo "byte code is made again"; exit 1; fi
if touch /usr/x 2>/dev/null; then echo "the root is not read-only"; exit 1; fi
sh -c 'sleep 0.2 & exit' # its sleep has no parent afterwards
sleep 1
if grep -l '^State:.Z' /proc/[0-9]*/status; then echo "nobody waits for what is left behind"; exit 1; fi
mesh up -d
mesh install /opt/weather
mesh call weather.forecast.today city=Oslo
mesh nodes
mesh down
`

// enter starts the script in a folder, in new namespaces: its mounts end with them.
const enter = `
root=$1; shift; script=$1; shift
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for folder in home/toolmesh var/lib/toolmesh; do mount -t tmpfs -o uid=65532,gid=65532,mode=700 tmpfs "$root/$folder"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cd "$root/home/toolmesh"
exec chroot --userspec=65532:65532 "$root" /usr/bin/env -i "$@" /usr/bin/tini -- /bin/sh -ec "cd /home/toolmesh; $script"
`

// cannot says why the agent's image cannot be made here.
func cannot(ctx context.Context, b *build) string {
	if os.Getuid() != 0 {
		return "not run: the agent's image takes root here"
	}
	for _, tool := range []string{"apt-get", "mmdebstrap", "unshare", "ip", "chroot"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "not run: there is no " + tool
		}
	}
	if _, err := b.aptSources(ctx); err != nil {
		return "not run: " + err.Error()
	}
	return ""
}

// copySources copies the tracked files of the product to another folder.
func copySources(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	copying := exec.CommandContext(t.Context(), "sh", "-ec", `git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - | tar --extract --directory "$1"`, "sh", to)
	copying.Dir = "../.."
	if out, err := copying.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v\n%s", err, out)
	}
	return to
}

// Both images are the same when they are made again from sources in another folder, with
// nothing of the first time, and what the agent's needs to start is in it.
func TestBothImagesAreReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: it compiles everything again and makes two root file systems, which takes minutes: make images-check")
	}
	here, there := testBuild(t, "../.."), testBuild(t, copySources(t))
	here.log, there.log = t.Output(), t.Output()
	there.environ = []string{"GOCACHE=" + t.TempDir()}
	twice := func(t *testing.T, making func(b *build, work string) (*image, error)) *image {
		t.Helper()
		var all []map[string]string
		var img *image
		for _, b := range []*build{there, here} {
			start := time.Now()
			var err error
			if img, err = making(b, t.TempDir()); err != nil {
				t.Fatal(err)
			}
			all = append(all, digests(t, b, img))
			t.Logf("%v %s", all[len(all)-1], time.Since(start).Round(time.Second))
		}
		if !maps.Equal(all[0], all[1]) {
			t.Error("the two differ")
		}
		return img
	}
	t.Run("router", func(t *testing.T) {
		twice(t, func(b *build, work string) (*image, error) {
			return b.router(t.Context(), filepath.Join(work, "router"))
		})
	})
	t.Run("agent", func(t *testing.T) {
		if why := cannot(t.Context(), here); why != "" {
			t.Skip(why)
		}
		img := twice(t, func(b *build, work string) (*image, error) { return b.agent(t.Context(), work) })
		files := checkImage(t, here, img, agentAbout)
		if files["var/lib/dpkg/status"] == nil {
			t.Error("scanners find no list of Debian's packages")
		}
		for name := range files {
			if left.MatchString(name) {
				t.Errorf("/%s is in the image", name)
			}
		}
		checkProgram(t, files["usr/bin/mesh-agent"])
		start(t, img)
	})
}

// left matches traces of the build and the machine.
var left = regexp.MustCompile(`^(dev|proc|sys|tmp|boot|media|mnt|srv|opt|run/lock|var/(log|cache|backups|tmp)|var/lib/apt|etc/apt/.*)/.|^etc/(hostname|resolv\.conf|machine-id|apt/sources\.list|.*-)$|\.log$`)

// start unpacks the agent's image into a folder and starts it there.
func start(t *testing.T, img *image) {
	t.Helper()
	root := t.TempDir()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		files, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		unpack := exec.CommandContext(t.Context(), "tar", "--extract", "--preserve-permissions", "--numeric-owner", "--directory", root)
		unpack.Stdin = files
		out, err := unpack.CombinedOutput()
		if err := errors.Join(err, files.Close()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// The files that a container engine would make, and the installed ones.
	if err := errors.Join(os.Chmod(root, 0o755), os.CopyFS(filepath.Join(root, "opt/weather"), os.DirFS("../../examples/indexes/weather"))); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "unshare", append([]string{
		"--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-ec", enter, "sh", root, startScript}, agentAbout.env...)...)
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"v1.2.3", "uv " + uvVersion(), "git version", `"city":"Oslo"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q", want)
		}
	}
}
