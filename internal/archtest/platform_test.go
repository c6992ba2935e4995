package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The packages that services embed build on the machines of their developers.
func TestLibrariesBuildElsewhere(t *testing.T) {
	t.Parallel()
	m := house(t)
	var folders []string
	for _, folder := range []string{"client", "host", "router"} {
		if _, err := os.Stat(filepath.Join(m.root, folder)); err == nil {
			folders = append(folders, "./"+folder+"/...")
		}
	}
	if len(folders) == 0 {
		folders = []string{"./codec/...", "./subjects/..."}
	}
	for _, goos := range []string{"darwin", "windows"} {
		// One after the other: each of them uses every core there is.
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build"}, folders...)...)
		cmd.Dir = m.root
		cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=arm64", "CGO_ENABLED=0")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("GOOS=%s go build %v: %v\n%s", goos, folders, err, out.Bytes())
		}
	}
}
