package sandbox

import (
	"fmt"
	"os"

	"github.com/toolmesh/toolmesh/tool"
)

// OwnFolder makes a folder below parent for what a sandbox level lets processes
// write; empty where it leaves them others.
func OwnFolder(parent string, level tool.Sandbox) (string, error) {
	if !level.AtLeast(tool.SandboxStrict) {
		return "", nil
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", fmt.Errorf("the folder for temporary files: %w", err)
	}
	return os.MkdirTemp(parent, "")
}
