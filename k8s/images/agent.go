package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const dataDir = "var/lib/toolmesh"

// debianPackages are what an agent needs of Debian: openssh-client for sources that are
// reached by ssh, tzdata for zoneinfo of Python.
var debianPackages = []string{"ca-certificates", "git", "openssh-client", "python3", "python3-venv", "tini", "tzdata"}

// compilePython makes byte code that is valid without times: files of images have none.
const compilePython = "PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3*"

// finishDebian is run in the root file system. It compiles Python, removes traces of the build
// and the machine, removes modes that give rights, and adds the images' user with its folders.
var finishDebian = []string{
	compilePython,
	"find /etc/apt -type f ! -name 00mmdebstrap -delete", // which mmdebstrap removes itself
	"rm -rf /etc/hostname /etc/resolv.conf /etc/machine-id /var/lib/apt/* /var/cache/* /var/log/* /var/backups/* /var/lib/dbus/machine-id /etc/.pwd.lock /etc/*- /var/lib/dpkg/*-old /var/lib/dpkg/lock* /var/lib/dpkg/triggers/Lock",
	"find / -xdev -type f -perm /6000 -exec chmod a-s {} +",
	`sed -i -E "s/^([^:]*:[^:]*):[0-9]*:/\1::/" /etc/shadow`, // the day of the build
	"echo " + passwd + " >> /etc/passwd",
	"echo " + group + " >> /etc/group",
	"install -d -m 750 -o 65532 -g 65532 " + home + " /" + dataDir,
}

// uvRequirements names the one version of uv, and the hashes of its wheels.
//
//go:embed uv.txt
var uvRequirements []byte

// agent is the image of the agent. Its layers are in the order in which they change: rarely
// Debian, then uv, then our programs.
func (b *build) agent(ctx context.Context, work string) (*image, error) {
	debian, err := b.debian(ctx, work)
	if err != nil {
		return nil, err
	}
	uv, err := b.uv(ctx, filepath.Join(work, "uv"))
	if err != nil {
		return nil, err
	}
	product := filepath.Join(work, "product")
	// mmdebstrap leaves /dev out with its devices.
	if err := errors.Join(b.binaries(ctx, product, "mesh", "mesh-agent"), os.MkdirAll(filepath.Join(product, "dev"), 0o755)); err != nil {
		return nil, err
	}
	programs, err := folderLayer(product)
	if err != nil {
		return nil, err
	}
	return b.image(agentAbout,
		namedLayer{debian, "Debian " + b.suite + ": " + strings.Join(debianPackages, " ")},
		namedLayer{uv, "uv " + uvVersion()},
		namedLayer{programs, "mesh, mesh-agent"})
}

// debian is a root file system of Debian with what an agent needs, for its user.
func (b *build) debian(ctx context.Context, work string) (v1.Layer, error) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return nil, errors.New("the agent's image is made with mmdebstrap, which is not installed: run apt-get install mmdebstrap, or build k8s/images/Containerfile.agent")
	}
	sources, err := b.aptSources(ctx)
	if err != nil {
		return nil, err
	}
	options, err := b.aptOptions(ctx, work)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(work, "root.tar")
	fmt.Fprintf(b.log, "make a root file system of Debian %s\n", b.suite)
	cmd := exec.CommandContext(ctx, "mmdebstrap", append([]string{
		"--quiet", "--variant=essential", "--architectures=" + b.arch,
		"--include=" + strings.Join(debianPackages, ","),
		"--aptopt=" + options,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/info/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--skip=output/dev,cleanup/apt",
		`--customize-hook=chroot "$1" sh -ec '` + strings.Join(finishDebian, "; ") + `'`,
		b.suite, file,
	}, sources...)...)
	cmd.Stderr = b.log
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	// Killed, it leaves the file system in the temporary folder. It removes it once its children have ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("mmdebstrap: %w", err)
	}
	return fileLayer(file)
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

var uvLine = regexp.MustCompile(`(?m)^uv==(\S+)`)

func uvVersion() string { return string(uvLine.FindSubmatch(uvRequirements)[1]) }

// uv is the program and its licenses, from its wheel, which pip compares with the hashes.
func (b *build) uv(ctx context.Context, work string) (v1.Layer, error) {
	wheel, files := filepath.Join(work, "wheel"), filepath.Join(work, "files")
	list := filepath.Join(work, "uv.txt")
	if err := errors.Join(os.MkdirAll(wheel, 0o755), os.WriteFile(list, uvRequirements, 0o600)); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.log, "get uv %s\n", uvVersion())
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[b.arch]
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--require-hashes",
		"--only-binary", ":all:", "--platform", "manylinux2014_"+machine, "--platform", "manylinux_2_17_"+machine, "--platform", "manylinux_2_28_"+machine,
		"--target", wheel, "--requirement", list)
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("pip install: %w", err)
	}
	licenses, err := filepath.Glob(filepath.Join(wheel, "uv-*.dist-info", "licenses", "*"))
	if err != nil {
		return nil, err
	}
	for _, from := range append(licenses, filepath.Join(wheel, "bin", "uv")) {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		to, mode := "usr/share/doc/uv/"+filepath.Base(from), os.FileMode(0o644)
		if filepath.Base(from) == "uv" {
			to, mode = "usr/local/bin/uv", 0o755
		}
		if err := put(filepath.Join(files, to), mode, data); err != nil {
			return nil, err
		}
	}
	return folderLayer(files)
}
