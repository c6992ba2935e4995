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

// folders are those for temporary files of workers, by number. One that a worker has
// left as it was serves the next: file systems are slow to make and remove many,
// compared with a fork. Its methods may be called concurrently.
type folders struct {
	log    *slog.Logger
	parent string // empty: there are none

	mu   sync.Mutex
	free []folder
	last uint16
}

// folder is one of them; that of number 0 is none.
type folder struct {
	number uint16
	path   string
	owner  sandbox.User
	made   bool // it is there, as untouched says
}

// untouched is the time of a folder's last change, until it is changed: the system's
// clock for files may stand still for as long as a brief call takes.
var untouched = time.Unix(1, 0)

// take gives a worker of a user a folder; none where there can be none, on a full disk
// say.
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

// possess makes a new folder a user's, and untouched. What is above it may be the user's
// already, which may have put something else in its place: nothing else is changed.
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

// give takes the folder of a worker back. ended says that nothing can be written there
// any more.
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
