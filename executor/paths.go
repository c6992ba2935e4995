package executor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// Path is a folder of this machine for an index's processes, whichever user owns it, to read or
// also to write. It may begin with ~/ for their home.
type Path struct {
	Path  string
	Write bool
}

// Given are folders found by [Executor.Paths].
type Given struct{ paths []sandbox.Path }

func (g *Given) add(path string, write bool) {
	access := map[bool]sandbox.Access{false: sandbox.AccessRead, true: sandbox.AccessWrite}[write]
	g.paths = append(g.paths, sandbox.Path{Path: path, Access: access})
}

// seen are the folders below the agent's that only this index's processes see: their source, their environment, and their user's home.
func (x *Executor) seen(source string, env *Env, user sandbox.User) (seen []sandbox.Path) {
	for _, p := range []sandbox.Path{{Path: source, Access: sandbox.AccessSee}, {Path: env.Dir, Access: sandbox.AccessSee}, {Path: user.Home, Access: sandbox.AccessOwn}} {
		if real, err := filepath.EvalSymlinks(p.Path); err == nil && real != x.sealed && within(real, x.sealed) {
			seen = append(seen, sandbox.Path{Path: real, Access: p.Access})
		}
	}
	return seen
}

// systems are first parts of paths that an index cannot ask for: files of the system, its
// services and its users.
var systems = []string{
	"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "sys", "usr", "var",
}

// Paths finds the folders of an account's index, as absolute paths without symbolic links, with
// which a tool that can write one folder could redirect another. given are from its installer,
// asked from the index itself, as far as it may have them; notes for people are about the latter.
// The error, about given folders, is install_failed.
func (x *Executor) Paths(account string, given, asked []Path) (paths Given, notes []string, err error) {
	user, _, err := x.user(account, x.opts.Sandbox)
	if err != nil {
		return Given{}, nil, unavailable("%w", err)
	}
	for _, p := range given {
		found, err := x.find(user, p)
		if err != nil {
			return Given{}, nil, toolmesh.Errorf(toolmesh.CodeInstallFailed, "--path %s: %w", p.Path, err).
				WithOrigin(toolmesh.OriginAgent).WithDetail("reason", "path")
		}
		paths.add(found, p.Write)
	}
	for _, p := range asked {
		var found string
		err := hidden(user, p.Path)
		if err == nil {
			found, err = x.find(user, p)
		}
		switch {
		case err == nil && slices.ContainsFunc(paths.paths, func(one sandbox.Path) bool { return one.Path == found }):
			continue
		case err == nil:
			err = x.enough(user, found)
		}
		access := map[bool]string{true: "to write", false: "to read"}[p.Write]
		if err != nil {
			mode := map[bool]string{true: ":rw"}[p.Write]
			notes = append(notes, fmt.Sprintf("the index asks for the folder %s %s and does not get it: %s (mesh install … --path %s%s gives it)", p.Path, access, err, p.Path, mode))
			continue
		}
		paths.add(found, p.Write)
		if !strings.HasPrefix(p.Path, "~") {
			notes = append(notes, fmt.Sprintf("the index has the folder %s %s, which it asks for", p.Path, access))
		}
	}
	return paths, notes, nil
}

// Reserve closes a folder of an account's files to all other users, also to processes of other
// accounts, independently of the modes of its files.
func (x *Executor) Reserve(account, folder string) error {
	user, _, err := x.user(account, tool.SandboxGuard)
	mode := os.FileMode(0o700)
	if err == nil && user.ID != 0 {
		mode = 0o750
		err = os.Lchown(folder, -1, user.Group)
	}
	if err == nil {
		err = os.Chmod(folder, mode)
	}
	if err != nil {
		return unavailable("the folder of the index %s cannot be kept from others: %w", account, err)
	}
	return nil
}

// hidden refuses a hidden folder in a home that its owner has not given.
func hidden(user sandbox.User, path string) error {
	if user.ID == 0 && strings.Contains(filepath.Clean(path), "/.") {
		return errors.New("it is hidden (a part of the path begins with a dot)")
	}
	return nil
}

// find looks up a folder. A writable one below the home is made if missing.
func (x *Executor) find(user sandbox.User, p Path) (string, error) {
	path, home := p.Path, user.Home
	if below, ok := strings.CutPrefix(path, "~/"); ok {
		if home == "" {
			home = x.home()
		}
		if real, err := realPath(home); err == nil {
			home = real
		}
		path = filepath.Join(home, below)
		if p.Write {
			if err := user.MakeBelow(home, below); err != nil {
				return "", err
			}
		}
	}
	found, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", errors.New("no such folder exists on this node: create it, or name another")
	}
	if found != filepath.Clean(path) {
		return "", fmt.Errorf("it is reached through a symbolic link: use its own path, which is %s now", found)
	}
	if info, err := os.Stat(found); err != nil || !info.IsDir() {
		return "", errors.New("it is not a folder")
	}
	if user.Home != "" && within(found, user.Home) {
		return found, nil
	}
	if info, err := os.Stat(found); user.ID != 0 && x.spawner.Level() == sandbox.LevelReaper && (err != nil || info.Mode()&7 != 7 && (p.Write || info.Mode()&5 != 5)) {
		return "", errors.New("its mode excludes other users, and this machine cannot mount it for them: chmod o+rwx it")
	}
	if within(found, x.sealed) || within(x.sealed, found) {
		return "", errors.New("it contains the agent's own files")
	}
	return found, nil
}

// home is the home of processes without a user of their own.
func (x *Executor) home() string { return cmp.Or(variable(x.opts.Environ, "HOME"), "/") }

// variable is the value of a variable of an environment, empty without it.
func variable(environ []string, name string) string {
	for _, line := range environ {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

// enough returns why an index does not get a folder that it asks for; nil if it does.
func (x *Executor) enough(user sandbox.User, path string) error {
	home := x.home()
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); {
	case user.Home != "" && within(path, user.Home):
		return nil
	case user.ID == 0 && path != home && within(path, home):
		return hidden(user, strings.TrimPrefix(path, home))
	case first == "", within(path, home), slices.Contains(systems, first) && !within(path, "/var/tmp") && !within(path, "/dev/shm"):
		return errors.New("it belongs to the system, or is a user's home")
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() && int(stat.Uid) != user.ID {
		return errors.New("it belongs to another user")
	}
	return nil
}

// within reports whether path is folder, or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
