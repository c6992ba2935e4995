package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

const dataDir = "var/lib/toolmesh"

// debianPackages are what an agent needs of Debian: openssh-client for sources that are
// reached by ssh, tzdata for zoneinfo of Python.
var debianPackages = []string{"ca-certificates", "git", "openssh-client", "python3", "python3-venv", "tini", "tzdata"}

// compilePython is run in the root file system. As files of images have no times, byte code
// that is compared by time would be made anew by each process.
const compilePython = "PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3*"

// uvRequirements names the one version of uv, and the hashes of its wheels.
//
//go:embed uv.txt
var uvRequirements []byte

// agent is the image of the agent. Its layers are in the order in which they change: rarely
// Debian, then uv, then our programs.
func (b *build) agent(ctx context.Context) (*image, error) {
	debian, err := b.debian(ctx)
	if err != nil {
		return nil, err
	}
	uv, version, err := b.uv(ctx)
	if err != nil {
		return nil, err
	}
	product, err := b.binaries(ctx, "mesh", "mesh-agent")
	if err != nil {
		return nil, err
	}
	return b.image(agentAbout,
		namedLayer{debian, "Debian " + b.suite + ": " + strings.Join(debianPackages, " ")},
		namedLayer{uv, "uv " + version},
		namedLayer{product, "mesh, mesh-agent"})
}

// debian is a root file system of Debian with what an agent needs, for its user.
func (b *build) debian(ctx context.Context) (tree, error) {
	if err := b.needMmdebstrap(ctx); err != nil {
		return nil, err
	}
	sources, err := b.aptSources(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "mesh-debian-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is of the temporary folder
	options, err := b.aptOptions(ctx, folder)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "root.tar")
	fmt.Fprintf(b.log, "make a root file system of Debian %s\n", b.suite)
	cmd := exec.CommandContext(ctx, "mmdebstrap", append([]string{
		"--quiet", "--variant=essential", "--architectures=" + b.arch,
		"--include=" + strings.Join(debianPackages, ","),
		"--aptopt=" + options,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/info/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		`--customize-hook=chroot "$1" sh -c '` + compilePython + `'`,
		b.suite, file,
	}, sources...)...)
	cmd.Stderr = b.log
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.epoch.Unix()))
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("mmdebstrap: %w", err)
	}
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	t, err := readTree(in, leftOut)
	if err != nil {
		return nil, err
	}
	return t, finish(t)
}

// needMmdebstrap installs the one program that this takes where it may, and says what is
// missing where it may not.
func (b *build) needMmdebstrap(ctx context.Context) error {
	if _, err := exec.LookPath("mmdebstrap"); err == nil {
		return nil
	}
	const missing = "the agent's image is made with mmdebstrap, which is not installed: run apt-get install mmdebstrap, or build k8s/images/Containerfile.agent"
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 {
		return errors.New(missing)
	}
	cmd := exec.CommandContext(ctx, "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "mmdebstrap")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s (apt-get: %w)\n%s", missing, err, out)
	}
	return nil
}

// aptSources are the lines of sources of the suite that apt has on this machine, so that what
// it is set up with is asked and no other host.
func (b *build) aptSources(ctx context.Context) (lines []string, err error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages", "Origin: Debian").Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for its sources: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		release, source, _ := strings.Cut(strings.TrimSpace(line), " ")
		if release == b.suite || strings.HasPrefix(release, b.suite+"-") {
			lines = append(lines, source)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("apt has no packages of Debian %s here: run apt-get update, or name another suite (SUITE=…)", b.suite)
	}
	return lines, nil
}

var aptReaches = regexp.MustCompile(`^Acquire::(https?|Retries|Check-)`)

// aptOptions writes a file with how apt reaches its sources: proxies, certificates.
func (b *build) aptOptions(ctx context.Context, folder string) (file string, err error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty", "--format", "%F \"%v\";%n").Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for its settings: %w", err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(out)) {
		if aptReaches.MatchString(line) {
			kept.WriteString(line)
		}
	}
	file = filepath.Join(folder, "apt.conf")
	return file, os.WriteFile(file, []byte(kept.String()), 0o600)
}

// leftOut says what of a new root file system is no part of the image: what is of the machine
// that made it, what was written on the way, and what a container is given anyway.
func leftOut(name string) bool {
	switch top, below, _ := strings.Cut(name, "/"); top {
	case "dev", "proc", "sys", "run", "tmp", "boot", "media", "mnt", "srv", "opt":
		return below != ""
	}
	switch name {
	case "etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/.pwd.lock", "var/lib/dbus/machine-id",
		"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
		"var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock", "var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old":
		return true
	}
	for _, folder := range []string{"var/log/", "var/cache/", "var/lib/apt/", "var/backups/", "var/tmp/", "etc/apt/"} {
		if strings.HasPrefix(name, folder) {
			return true
		}
	}
	return false
}

// finish adds the images' user and its folders, and takes the day of the build out of the
// list of passwords, which nobody has here.
func finish(t tree) error {
	for name, line := range map[string]string{"etc/passwd": passwd, "etc/group": group} {
		if t[name] == nil {
			return fmt.Errorf("the root file system has no %s", name)
		}
		t[name].data = append(t[name].data, line...)
	}
	if shadow := t["etc/shadow"]; shadow != nil {
		shadow.data = regexp.MustCompile(`(?m)^([^:]*:[^:]*):\d*:`).ReplaceAll(shadow.data, []byte("$1::"))
	}
	t.folder(home[1:], 0o750)
	t.folder(dataDir, 0o750)
	t.add("tmp", &node{kind: tar.TypeDir, mode: sticky | 0o777})
	return nil
}

var (
	uvVersion = regexp.MustCompile(`(?m)^uv==(\S+)`)
	uvHash    = regexp.MustCompile(`sha256:([0-9a-f]{64})`)
)

// uv is uv from its wheel, which pip gets and compares with the hashes.
func (b *build) uv(ctx context.Context) (t tree, version string, err error) {
	version = string(uvVersion.FindSubmatch(uvRequirements)[1])
	folder, err := os.MkdirTemp("", "mesh-uv-")
	if err != nil {
		return nil, version, err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is of the temporary folder
	list := filepath.Join(folder, "uv.txt")
	if err := os.WriteFile(list, uvRequirements, 0o600); err != nil {
		return nil, version, err
	}
	fmt.Fprintf(b.log, "get uv %s\n", version)
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[b.arch]
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
		"--only-binary", ":all:", "--platform", "manylinux2014_"+machine, "--platform", "manylinux_2_17_"+machine, "--platform", "manylinux_2_28_"+machine,
		"--dest", folder, "--requirement", list)
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := cmd.Run(); err != nil {
		return nil, version, fmt.Errorf("pip download: %w", err)
	}
	wheels, err := filepath.Glob(filepath.Join(folder, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return nil, version, fmt.Errorf("pip got %d wheels of uv, want one", len(wheels))
	}
	wheel, err := os.ReadFile(wheels[0])
	if err != nil {
		return nil, version, err
	}
	t, err = uvTree(wheel)
	return t, version, err
}

// uvTree is what the image has of the wheel: the program, and its licenses.
func uvTree(wheel []byte) (tree, error) {
	z, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		return nil, err
	}
	t := make(tree)
	for _, f := range z.File {
		name, mode := "", fs.FileMode(0o644)
		switch {
		case strings.HasSuffix(f.Name, ".data/scripts/uv"):
			name, mode = "usr/local/bin/uv", 0o755
		case strings.Contains(f.Name, ".dist-info/licenses/"):
			name = "usr/share/doc/uv/" + path.Base(f.Name)
		default:
			continue
		}
		in, err := f.Open()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		t.file(name, mode, data)
	}
	if t["usr/local/bin/uv"] == nil {
		return nil, errors.New("the wheel of uv has no program")
	}
	return t, nil
}
