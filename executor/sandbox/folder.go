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

// OwnFolder makes a folder below parent for temporary files of a user's processes;
// empty where none can be made, on a full disk say, and the sandbox level leaves them
// the machine's.
func OwnFolder(parent string, level tool.Sandbox, user User) (string, error) {
	folder, err := os.MkdirTemp(parent, "")
	if err == nil && user.ID != 0 {
		err = os.Chown(folder, user.ID, user.Group)
	}
	switch {
	case err == nil:
		return folder, nil
	case folder != "":
		_ = os.Remove(folder)
	}
	if level.AtLeast(tool.SandboxStrict) {
		return "", fmt.Errorf("the folder for temporary files: %w", err)
	}
	return "", nil
}
