package venv

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Environments that several stores have in one folder, on machines that may differ, with
// no lock between them: file systems that machines share lock badly or not at all.
//
//   - An environment is complete with its bytecode before it is renamed into its place, and
//     nothing in it changes from then on. Two stores may build the same one at once; the
//     first is kept.
//   - Its name has all of the interpreter and the C library that it depends on.
//   - The time of its marker is that of its last use: stores that use it renew it. Nobody
//     knows of all uses, so that what is removed has not been used for long.

const (
	// sharedAge is how long a shared environment stays that nobody uses.
	sharedAge = 30 * 24 * time.Hour
	// renewed is how old the note of a use gets, and abandoned how old the folder of a
	// build may be: no build takes as long. Both are more than clocks of machines differ by.
	renewed, abandoned = 24 * time.Hour, 24 * time.Hour
)

// sharedEnvs is the folder of shared environments, empty where there is none.
func (s *Store) sharedEnvs() string {
	if s.shared == "" {
		return ""
	}
	return filepath.Join(s.shared, "envs")
}

// shareable reports whether the environment of a lock may be used by other stores: there
// is something to build, and it rests on nothing but its own files.
func shareable(lock Lock) bool {
	return lock.Own == "" && !blank(lock.Requirements) && !editable.Match(lock.Requirements)
}

// touch notes that a shared environment, if it is there, is in use.
func (s *Store) touch(dir string) {
	now := time.Now()
	if err := os.Chtimes(filepath.Join(dir, markerName), now, now); err != nil && !os.IsNotExist(err) {
		s.log.Warn("the use of a shared environment cannot be noted: it is removed a month after its last note",
			slog.String("dir", dir), slog.Any("error", err))
	}
}

// tidyShared notes which shared environments are in use here, and removes those that
// nobody has used for long and builds that were cut off.
func (s *Store) tidyShared() {
	entries, _ := os.ReadDir(s.sharedEnvs()) // none was ever made
	for _, entry := range entries {
		name, dir := entry.Name(), filepath.Join(s.sharedEnvs(), entry.Name())
		building := strings.HasPrefix(name, "new-")
		file := filepath.Join(dir, markerName)
		if building {
			file = dir
		}
		info, err := os.Stat(file)
		if err != nil {
			continue // it has just gone, or is being replaced
		}
		unused := time.Since(info.ModTime())
		switch {
		case building:
			if unused > abandoned {
				_ = os.RemoveAll(dir)
			}
		case !s.uses.unused(name, 0):
			if unused > renewed {
				s.touch(dir)
			}
		case unused > sharedAge:
			if err := s.remove(s.sharedEnvs(), name, 0); err != nil {
				s.log.Warn("unused environment not removed", slog.String("digest", name), slog.String("error", err.Error()))
			}
		}
	}
}
