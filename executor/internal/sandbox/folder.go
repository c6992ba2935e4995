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

// Path is a folder that processes are to have.
type Path struct {
	Path   string `json:"path"`
	Access Access `json:"access"`
}

// Access is what of a folder is given, as levels.py has it.
type Access string

// What is given: to read and to write as the owner of the folder; to see, and to write
// too, as the modes of its files say, also where others do not pass on the way to it.
const (
	AccessRead  Access = "r"
	AccessWrite Access = "w"
	AccessSee   Access = "s"
	AccessOwn   Access = "o"
)

// folders counts those that OwnFolder has made.
var folders atomic.Uint64

// OwnFolder makes a folder below parent for temporary files of a user's processes;
// empty where none can be made, on a full disk say, and the sandbox level leaves them
// the machine's.
func OwnFolder(parent string, level tool.Sandbox, user User) (string, error) {
	folder, err := "", os.ErrExist
	for errors.Is(err, os.ErrExist) {
		// Short: sockets are made in it, whose paths have at most 107 bytes.
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
