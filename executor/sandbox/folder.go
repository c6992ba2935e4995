package sandbox

import (
	"fmt"
	"os"

	"github.com/toolmesh/toolmesh/tool"
)

// Path is a folder that processes are to have, whoever owns it.
type Path struct {
	Path  string `json:"path"`
	Write bool   `json:"write"`
}

// OwnFolder makes a folder below parent for what a sandbox level lets processes of a
// user write; empty where it leaves them others.
func OwnFolder(parent string, level tool.Sandbox, user User) (string, error) {
	if !level.AtLeast(tool.SandboxStrict) {
		return "", nil
	}
	folder, err := os.MkdirTemp(parent, "")
	if err == nil && user.ID != 0 {
		err = os.Chown(folder, user.ID, user.Group)
	}
	if err != nil {
		return "", fmt.Errorf("the folder for temporary files: %w", err)
	}
	return folder, nil
}
