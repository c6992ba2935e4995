package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/subjects"
)

// DataFolder returns the absolute path of the folder in the settings, else $XDG_DATA_HOME/toolmesh,
// else ~/.local/share/toolmesh.
func DataFolder(env []string, set string) (dir string, err error) {
	data, home := connect.Lookup(env, "XDG_DATA_HOME"), connect.Lookup(env, "HOME")
	switch { // a relative path of a variable would depend on the working folder
	case set != "":
		dir, err = filepath.Abs(set)
	case filepath.IsAbs(data):
		dir = filepath.Join(data, "toolmesh")
	case filepath.IsAbs(home):
		dir = filepath.Join(home, ".local", "share", "toolmesh")
	default:
		err = errors.New("HOME is no absolute path; give --data-dir")
	}
	if err == nil && (!utf8.ValidString(dir) || strings.ContainsRune(dir, filepath.ListSeparator)) { // the record of a mesh is JSON
		err = fmt.Errorf("%q is not UTF-8, or has a %q, which no PATH of a tool can have; give another --data-dir", dir, filepath.ListSeparator)
	}
	if err != nil {
		return "", fmt.Errorf("there is no data folder: %w", err)
	}
	return dir, nil
}

// ErrInUse says that another process uses a data folder.
var ErrInUse = errors.New("in use")

// Folder is a data folder used only by this process.
type Folder struct {
	Dir  string
	lock *os.File
}

// OpenFolder makes a data folder if it is missing and locks it until [Folder.Close] or the end of
// this process, however it ends. The error is [ErrInUse] if another process holds it.
func OpenFolder(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data folder cannot be made; name another with --data-dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data folder cannot be locked: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		text := make([]byte, 20)
		n, _ := f.Read(text)
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("the data folder %s cannot be locked: %w", dir, err)
		}
		holder := "another process"
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n]))); err == nil {
			holder = fmt.Sprintf("process %d", pid)
		}
		return nil, fmt.Errorf("the data folder %s is %w by %s: stop that one, or give another --data-dir", dir, ErrInUse, holder)
	}
	// For people and for the message above; the lock does not need it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Folder{Dir: dir, lock: f}, nil
}

// Close lets other processes use the folder.
func (f *Folder) Close() error { return f.lock.Close() }

var notToken = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// NodeID returns the node's id: that of the settings, else the folder's own, made from the host's
// name on first use.
func (f *Folder) NodeID(set string) (subjects.NodeID, error) {
	if set != "" {
		if _, err := subjects.NodeKey(subjects.NodeID(set)); err != nil {
			return "", fmt.Errorf("the node's id: %w", err)
		}
		return subjects.NodeID(set), nil
	}
	path := filepath.Join(f.Dir, "node")
	if data, err := os.ReadFile(path); err == nil {
		id := subjects.NodeID(strings.TrimSpace(string(data)))
		if _, err := subjects.NodeKey(id); err == nil {
			return id, nil
		}
	}
	host, _ := os.Hostname() // empty with an error
	host, _, _ = strings.Cut(host, ".")
	if host = strings.Trim(notToken.ReplaceAllString(host, "-"), "-"); host == "" || strings.HasPrefix(host, "x--") {
		host = "node"
	}
	id := subjects.NodeID(host[:min(len(host), 40)] + "-" + strings.ToLower(rand.Text()[:6]))
	if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("the node's id cannot be kept: %w", err)
	}
	return id, nil
}
