package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/toolmesh/toolmesh/tool"
)

// Path is a folder for processes.
type Path struct {
	Path   string `json:"path"`
	Access Access `json:"access"`
}

// Access is the access to a folder, as levels.py reads it.
type Access string

// The kinds of access: to read, or to read and write, as the owner of the folder; to see, or to
// see and write, by the modes of its files, even if a folder above is closed to the user.
const (
	AccessRead  Access = "r"
	AccessWrite Access = "w"
	AccessSee   Access = "s"
	AccessOwn   Access = "o"
)

// folders counts those made by OwnFolder.
var folders atomic.Uint64

// OwnFolder makes a folder below parent for temporary files of a user's processes. It returns
// "" if none can be made, for example on a full disk, and the sandbox level leaves them the
// machine's.
func OwnFolder(parent string, level tool.Sandbox, user User) (string, error) {
	folder, err := "", os.ErrExist
	for errors.Is(err, os.ErrExist) {
		// Short, as paths of sockets in it have at most 107 bytes.
		folder = filepath.Join(parent, strconv.FormatUint(folders.Add(1), 10))
		err = os.Mkdir(folder, 0o700)
	}
	if err == nil && user.ID != 0 {
		if err = os.Chown(folder, user.ID, user.Group); err != nil {
			_ = os.Remove(folder)
		}
	}
	if err == nil {
		return folder, nil
	}
	if level.AtLeast(tool.SandboxStrict) {
		return "", fmt.Errorf("the folder for temporary files: %w", err)
	}
	return "", nil
}
