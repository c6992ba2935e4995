package zygote

import (
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// folders are the folders for workers' temporary files, by number. An unused one serves the
// next worker: making and removing folders is slow compared with a fork. Its methods may be
// called concurrently.
type folders struct {
	log    *slog.Logger
	parent string // empty without folders

	mu   sync.Mutex
	free []folder
	last uint16
}

// folder is one of folders; number 0 is no folder.
type folder struct {
	number uint16
	path   string
	owner  sandbox.User
	made   bool // it exists and is unchanged, see untouched
}

// untouched is the modification time of an unused folder: the system's clock for files may not
// advance during a brief call, so the current time would not show a change.
var untouched = time.Unix(1, 0)

// take gives a worker of a user a folder; none if it cannot be made, for example on a full
// disk.
func (s *folders) take(user sandbox.User) (f folder) {
	if s.parent == "" {
		return folder{}
	}
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		f, s.free = s.free[n-1], s.free[:n-1]
	} else if s.last < math.MaxUint16 {
		s.last++
		f = folder{number: s.last, path: filepath.Join(s.parent, "w"+strconv.Itoa(int(s.last)))}
	}
	s.mu.Unlock()
	if f.number == 0 || f.made && f.owner == user {
		return f
	}
	var err error
	if !f.made {
		f.owner = sandbox.User{}
		err = os.Mkdir(f.path, 0o700)
	}
	if err == nil {
		id, group := user.ID, user.Group
		if id == 0 {
			id, group = os.Getuid(), os.Getgid()
		}
		err = possess(f.path, id, group)
	}
	if err != nil {
		s.log.Warn("temporary files of a worker are not limited", slog.String("error", err.Error()))
		s.give(f, true)
		return folder{}
	}
	f.owner, f.made = user, true
	return f
}

// possess gives a new folder to a user and marks it untouched. The folder above may be the
// user's, who may have replaced it: possess changes nothing else.
func possess(path string, id, group int) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a folder
	if err := f.Chown(id, group); err != nil {
		return err
	}
	at := syscall.NsecToTimeval(untouched.UnixNano())
	return syscall.Futimes(int(f.Fd()), []syscall.Timeval{at, at}) //nolint:gosec // a descriptor
}

// give returns the folder of a worker. ended tells that no process can write there any more.
func (s *folders) give(f folder, ended bool) {
	if f.number == 0 {
		return
	}
	info, err := os.Lstat(f.path)
	if f.made = ended && err == nil && info.Mode() == fs.ModeDir|0o700 && info.ModTime().Equal(untouched); !f.made {
		ended = deep.RemoveAll(f.path) == nil && ended
	}
	if ended {
		s.mu.Lock()
		s.free = append(s.free, f)
		s.mu.Unlock()
	}
}
