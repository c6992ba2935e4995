package k8s

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// kubernetesVersion is that of tools/go.mod. It is linked into the programs.
const kubernetesVersion = "1.37.1"

// tools is the module of the programs. Kubernetes pins the versions of its libraries; with the product's versions it
// would be built anew, which takes about nine minutes of processor time.
const tools = "tools"

// commands are built of that module.
var commands = []string{
	"k8s.io/kubernetes/cmd/kube-apiserver",
	"k8s.io/kubernetes/cmd/kube-controller-manager",
	"k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubelet",
	"k8s.io/kubernetes/cmd/kube-proxy",
	"k8s.io/kubernetes/cmd/kubectl",
	"./coredns",
	"./pause",
}

// Root is the product's folder, seen from the folder of the tests.
const Root = "../.."

func cacheFolder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(base, "toolmesh", "k8s")
	return folder, os.MkdirAll(folder, 0o755)
}

// programs builds the commands, or finds them in the cache, where they are kept until their sources change.
func programs(ctx context.Context) (folder string, err error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH, kubernetesVersion, commands)
	for _, name := range []string{"go.sum", "coredns/main.go", "pause/main.go"} {
		data, err := os.ReadFile(filepath.Join(tools, name))
		if err != nil {
			return "", err
		}
		hash.Write(data)
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	folder = filepath.Join(cache, hex.EncodeToString(hash.Sum(nil)[:8]))
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	// Other versions are removed: half a gigabyte each.
	old, err := filepath.Glob(filepath.Join(cache, "????????????????*"))
	if err != nil {
		return "", err
	}
	for _, name := range old {
		if err := os.RemoveAll(name); err != nil {
			return "", err
		}
	}
	fmt.Println("e2e-k8s: builds Kubernetes", kubernetesVersion, "into", folder)
	version := strings.SplitN(kubernetesVersion, ".", 3)
	const set = " -X k8s.io/component-base/version."
	flags := "-s -w" + set + "gitVersion=v" + kubernetesVersion + set + "gitMajor=" + version[0] + set + "gitMinor=" + version[1]
	making := folder + ".making"
	build := exec.CommandContext(ctx, "nice", append([]string{"-n", "10", "go", "build", "-p", "2", "-trimpath", "-buildvcs=false",
		"-ldflags", flags, "-o", making + "/"}, commands...)...)
	build.Dir = tools
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	if err := errors.Join(os.MkdirAll(making, 0o755), build.Run()); err != nil {
		return "", fmt.Errorf("build of Kubernetes: %w", err)
	}
	if err := os.Rename(making, folder); err != nil {
		return "", err
	}
	fmt.Println("e2e-k8s: built in", time.Since(start).Round(time.Second))
	return folder, nil
}
