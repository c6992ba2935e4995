package sandbox_test

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// Content that a user leaves in a lent folder leads the owner to no file of others, and none of
// it can be changed by others afterwards.
func TestLentFoldersComeBack(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: nothing can be lent")
	}
	const user, other, group = 1_950_000_001, 1_950_000_002, 1_950_000_003
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string, mode fs.FileMode, uid int) error {
		return errors.Join(os.WriteFile(at(name), []byte("text of "+name), 0o600), os.Chown(at(name), uid, uid), os.Chmod(at(name), mode))
	}
	must(os.Mkdir(at("lent"), 0o750), os.Chown(at("lent"), 0, group), os.Mkdir(at("lent/sub"), 0o755), file("lent/sub/own.py", 0o644, 0),
		file("cached", 0o644, 0), os.Link(at("cached"), at("lent/cached")))
	for name, owner := range map[string]int{"root": 0, "others": other, "setuid": 0, "users": user} {
		must(file(name, 0o640, owner))
	}
	must(os.Chown(at("setuid"), 0, group), os.Chmod(at("setuid"), 0o755|fs.ModeSetuid))
	back, err := sandbox.User{ID: user, Group: user}.Lend(at("lent"))
	must(err)
	owns := func(name string, uid, gid int, mode fs.FileMode) {
		t.Helper()
		info, err := os.Lstat(at(name))
		if err != nil {
			t.Error(err)
			return
		}
		stat, _ := info.Sys().(*syscall.Stat_t)
		if int(stat.Uid) != uid || int(stat.Gid) != gid || info.Mode()&^fs.ModeType != mode {
			t.Errorf("%s is of %d:%d with %v, want %d:%d with %v", name, stat.Uid, stat.Gid, info.Mode(), uid, gid, mode)
		}
	}
	owns("lent", user, group, 0o750)
	owns("lent/sub/own.py", user, user, 0o644)
	owns("lent/cached", 0, 0, 0o644)

	// As a hostile command would, where the system allows it.
	for _, name := range []string{"root", "others", "setuid", "users"} {
		must(os.Link(at(name), at("lent/"+name)))
	}
	must(os.Symlink(at("root"), at("lent/link")), os.Lchown(at("lent/link"), user, user), os.Symlink("/etc", at("lent/folder")),
		file("lent/open", 0o666, user), file("lent/program", 0o755|fs.ModeSetuid|fs.ModeSetgid, user), syscall.Mkfifo(at("lent/fifo"), 0o666),
		os.Mkdir(at("lent/not\xffUTF-8"), 0o777), os.Chmod(at("lent/not\xffUTF-8"), 0o777|fs.ModeSetgid), file("lent/not\xffUTF-8/file", 0o606, user),
		os.MkdirAll(at("lent/"+strings.Repeat("deep/", 700)), 0o700), os.Rename(at("lent/sub"), at("lent/moved")))
	socket, err := net.Listen("unix", at("lent/socket"))
	must(err)
	defer socket.Close() //nolint:errcheck // its file is gone
	must(os.Rename(at("lent"), at("away")), os.Mkdir(at("victim"), 0o700), os.Chown(at("victim"), other, other), os.Symlink(at("victim"), at("lent")))
	must(back())
	must(os.Remove(at("lent")), os.Rename(at("away"), at("lent")))

	owns("victim", other, other, 0o700)
	owns("root", 0, 0, 0o640)
	owns("others", other, other, 0o640)
	owns("setuid", 0, group, 0o755|fs.ModeSetuid)
	owns("cached", 0, 0, 0o644)
	owns("lent", 0, group, 0o750)
	owns("lent/cached", 0, 0, 0o644)
	owns("lent/moved/own.py", 0, 0, 0o644)
	owns("lent/users", 0, 0, 0o640)
	owns("lent/link", 0, 0, 0o777)
	owns("lent/open", 0, 0, 0o644)
	owns("lent/program", 0, 0, 0o755)
	owns("lent/not\xffUTF-8", 0, 0, 0o755)
	owns("lent/not\xffUTF-8/file", 0, 0, 0o604)
	for _, name := range []string{"root", "others", "setuid", "fifo", "socket"} {
		if _, err := os.Lstat(at("lent/" + name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in the folder: %v", name, err)
		}
	}
}

// Folders of any depth come back and are removed without a descriptor for each level.
func TestDeepFoldersNeedFewDescriptors(t *testing.T) { //nolint:paralleltest // descriptors are the process's
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	dig := func(folder string) { // from the bottom up: a path cannot be as long
		t.Helper()
		must(os.Mkdir(at("a"), 0o755))
		for range 1500 {
			must(os.Mkdir(at("b"), 0o755), os.Rename(at("a"), at("b/not\xffUTF-8")), os.Rename(at("b"), at("a")))
		}
		must(os.Rename(at("a"), filepath.Join(folder, rand.Text())))
	}
	var limit syscall.Rlimit
	must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	with := func(most uint64, do func() error) {
		t.Helper()
		must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: limit.Max}))
		err := do()
		must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit), err)
	}
	must(os.Mkdir(at("lent"), 0o755))
	if os.Geteuid() == 0 { // only root can lend
		back, err := sandbox.User{ID: 1_950_000_001, Group: 1_950_000_001}.Lend(at("lent"))
		must(err)
		dig(at("lent"))
		with(1200, back)
	}
	dig(at("lent"))
	with(300, func() error { return deep.RemoveAll(at("lent")) })
	if left, _ := os.ReadDir(top); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
