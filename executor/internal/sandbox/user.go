package sandbox

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// User is the user of processes. The zero value is the user that starts them.
type User struct {
	ID, Group int
	// Home is a folder that is the user's own.
	Home string
}

// IDs are the user's and the group's id; nil for the zero value.
func (u User) IDs() []int {
	if u.ID == 0 {
		return nil
	}
	return []int{u.ID, u.Group}
}

// Take makes files the user's own. It does nothing for the zero value.
func (u User) Take(files ...*os.File) error {
	if u.ID == 0 {
		return nil
	}
	for _, f := range files {
		if err := f.Chown(u.ID, u.Group); err != nil {
			return err
		}
	}
	return nil
}

// Lend makes folders, with their content, the user's own until back is called, which returns them.
// Then others cannot write there, and back has removed everything that is not a file, folder or
// link, lies very deep, or is a name for another user's file. The group of the folders themselves
// stays. Files with further names are not lent, as these may be in a shared cache. No process of
// the user that can write to the folders may run when Lend or back is called. It does nothing for
// the zero value.
func (u User) Lend(folders ...string) (back func() error, err error) {
	if u.ID == 0 {
		return func() error { return nil }, nil
	}
	l := loan{user: u, kept: map[inode]bool{}}
	for _, folder := range folders {
		root, err := os.OpenRoot(folder)
		if err == nil {
			l.roots = append(l.roots, root) // even if it is replaced meanwhile
			err = l.each(root, 0, l.give)
		}
		if err != nil {
			return nil, errors.Join(err, l.back())
		}
	}
	return l.back, nil
}

// Keep makes a folder if it is missing, and makes it and its content the user's own for good.
func (u User) Keep(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil || u.ID == 0 {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == u.ID {
		return nil
	}
	l := loan{user: u, kept: map[inode]bool{}}
	return l.each(root, 0, l.give)
}

// mostLevels is the greatest depth of a lent folder's content when it comes back: paths that
// programs use are shorter.
const mostLevels = 1000

// loan has the lent folders until they are returned.
type loan struct {
	user  User
	roots []*os.Root
	kept  map[inode]bool // files with further names, not lent
}

type inode struct{ device, number uint64 }

// each visits a folder and its content, content first. Content deeper than mostLevels is
// removed.
func (l *loan) each(root *os.Root, depth int, visit func(root *os.Root, name string, info fs.FileInfo, stat *syscall.Stat_t) error) error {
	folder, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := folder.Readdirnames(-1)
	_ = folder.Close()
	for _, name := range append(names, ".") {
		info, failed := root.Lstat(name)
		if failed == nil && info.IsDir() && name != "." {
			var below *os.Root
			if depth == mostLevels {
				failed = deep.RemoveIn(root, name)
			} else if below, failed = root.OpenRoot(name); failed == nil {
				failed = l.each(below, depth+1, visit)
				_ = below.Close()
			}
			err = errors.Join(err, failed)
			continue
		}
		if failed == nil {
			failed = visit(root, name, info, info.Sys().(*syscall.Stat_t)) //nolint:forcetypeassert // of every Unix
		}
		err = errors.Join(err, failed)
	}
	return err
}

func (l *loan) give(root *os.Root, name string, info fs.FileInfo, stat *syscall.Stat_t) error {
	if !info.IsDir() && stat.Nlink > 1 {
		l.kept[inodeOf(stat)] = true
		return nil
	}
	return l.own(root, name, info, l.user.ID, l.user.Group)
}

// back returns the folders with their present content.
func (l *loan) back() (err error) {
	for _, root := range l.roots {
		err = errors.Join(err, l.each(root, 0, l.take), root.Close())
	}
	return err
}

func (l *loan) take(root *os.Root, name string, info fs.FileInfo, stat *syscall.Stat_t) error {
	if !info.IsDir() && stat.Nlink > 1 && int(stat.Uid) != l.user.ID {
		if l.kept[inodeOf(stat)] {
			return nil
		}
		return root.Remove(name)
	}
	err := l.own(root, name, info, os.Geteuid(), os.Getegid())
	mode := info.Mode()
	if err == nil && (mode.IsRegular() || mode.IsDir()) && mode&(0o022|fs.ModeSetuid|fs.ModeSetgid) != 0 {
		err = root.Chmod(name, mode.Perm()&^0o022)
	}
	return err
}

// own gives a file to a user, or removes it if it is not a file, folder or link.
func (l *loan) own(root *os.Root, name string, info fs.FileInfo, uid, gid int) error {
	if info.Mode()&fs.ModeType&^(fs.ModeDir|fs.ModeSymlink) != 0 {
		return root.Remove(name)
	}
	if name == "." && slices.Contains(l.roots, root) {
		gid = -1
	}
	return root.Lchown(name, uid, gid) // also clears setuid and setgid
}

func inodeOf(stat *syscall.Stat_t) inode {
	return inode{uint64(stat.Dev), stat.Ino} //nolint:unconvert // not on every system
}

// MakeBelow makes a folder below an existing home: missing parts of the path become the user's
// own. It follows no symbolic link out of the home.
func (u User) MakeBelow(home, path string) error {
	root, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // read only
	parts := strings.Split(filepath.Clean(path), "/")
	for i := range parts {
		at := filepath.Join(parts[:i+1]...)
		err := root.Mkdir(at, 0o755) //nolint:gosec // as its user would
		if err == nil && u.ID != 0 {
			// The user may have replaced it: only a folder is given.
			var folder *os.File
			if folder, err = root.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY, 0); err == nil {
				err = errors.Join(u.Take(folder), folder.Close())
			}
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// The range of users' ids: one that no known program uses, and, where a user namespace lacks
// these, the end of the ids below 65536.
const (
	users      = 10_000
	firstUser  = 1_900_000_000
	firstSmall = 50_000
)

// Users assigns a user and a home to each name. The owner of a home is the user of its name, so
// that it is the same after a restart. Its methods may be called concurrently.
type Users struct {
	dir   string
	first int
	fixed *User // of all names; nil if each name has its own

	mu sync.Mutex
}

// NewUsers makes the users of a folder, which it makes if it is missing. name is a user of this
// machine, or a number, for all of them; empty gives each its own. It returns nil if name is
// the user of this process. The error says why other users are not available.
func NewUsers(dir, name string) (*Users, error) {
	u := &Users{dir: dir, first: firstUser}
	if name != "" {
		var err error
		if u.fixed, err = lookUp(name); err != nil {
			return nil, err
		}
		if u.fixed.ID == os.Geteuid() {
			return nil, nil //nolint:nilnil // as documented
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the agent does not run as root, and only root can start processes of another user")
	}
	err := os.MkdirAll(dir, 0o755) //nolint:gosec // each home is its user's own
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // whatever the umask
	}
	if err != nil {
		return nil, err
	}
	trial, err := os.MkdirTemp(dir, ".")
	if err != nil {
		return nil, err
	}
	defer os.Remove(trial) //nolint:errcheck // empty
	if err = os.Chown(trial, u.first+users, u.first+users); errors.Is(err, syscall.EINVAL) {
		u.first = firstSmall
		err = os.Chown(trial, u.first+users, u.first+users)
	}
	if err != nil {
		return nil, fmt.Errorf("the agent is root without the right to give files to another user: %w", errors.Unwrap(err)) // of its path
	}
	return u, nil
}

// lookUp finds a user by name or number; a number need not be known to the system.
func lookUp(name string) (*User, error) {
	found, err := user.Lookup(name)
	if err != nil {
		if found, err = user.LookupId(name); err != nil {
			found = &user.User{Uid: name, Gid: name}
		}
	}
	id, err := strconv.ParseUint(found.Uid, 10, 31)
	group, groupErr := strconv.ParseUint(found.Gid, 10, 31)
	if errors.Join(err, groupErr) != nil {
		return nil, errors.New("no such user exists on this machine: give a name of /etc/passwd or a number")
	}
	return &User{ID: int(id), Group: int(group)}, nil //nolint:gosec // 31 bits
}

// Of returns the user of a name, which must be a file name, and makes the home of a new one. A
// known name has the same user again, unless another name has it by then.
func (u *Users) Of(name string) (User, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	found := User{Home: filepath.Join(u.dir, name)}
	if u.fixed != nil {
		found.ID, found.Group = u.fixed.ID, u.fixed.Group
		return found, found.own()
	}
	homes, err := os.ReadDir(u.dir)
	if err != nil {
		return User{}, err
	}
	taken := map[int]bool{}
	for _, home := range homes {
		info, err := home.Info()
		if err != nil {
			continue // removed meanwhile
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			id := int(stat.Uid)
			if home.Name() == name && id >= u.first && id < u.first+users {
				found.ID, found.Group = id, id
				return found, nil
			}
			taken[id] = true
		}
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	for i := range users {
		id := u.first + (int(hash.Sum32()%users)+i)%users
		if !taken[id] {
			found.ID, found.Group = id, id
			return found, found.own()
		}
	}
	return User{}, fmt.Errorf("all %d users are in use: uninstall an index", users)
}

// own makes the user's home folder.
func (u User) own() error {
	if err := os.Mkdir(u.Home, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Lchown(u.Home, u.ID, u.Group)
}
