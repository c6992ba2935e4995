package venv

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// Environments that several stores have in one folder, on machines that may differ, with
// no lock between them: file systems that machines share lock badly or not at all.
//
//   - An environment is complete with its bytecode before it is renamed into its place, and
//     nothing in it changes from then on. What is noted of it comes last. Two stores may
//     build the same one at once; the first is kept.
//   - Its name has all of the interpreter and the C library that it depends on.
//   - The time of its marker is that of its last use: stores that use it renew it. Nobody
//     knows of all uses, so that what is removed has not been used for long.

const (
	// sharedAge is how long a shared environment stays without being used.
	sharedAge = 30 * 24 * time.Hour
	// renewed is how old the note of a use gets, and abandoned how old the folder of a
	// build may be: no build takes as long. Both are more than clocks of machines differ by.
	renewed, abandoned = 24 * time.Hour, 24 * time.Hour
)

// touch notes that a shared environment, if it is there, is in use.
func (s *Store) touch(at place) {
	now := time.Now()
	if err := os.Chtimes(at.file(markerName), now, now); err != nil && !os.IsNotExist(err) {
		s.log.Warn("the use of a shared environment cannot be noted: it is removed a month after its last note",
			slog.String("digest", at.digest), slog.String("error", err.Error()))
	}
}

// tidyShared notes that a shared environment is in use here, or removes it if nothing has
// used it for long, or if its build was cut off.
func (s *Store) tidyShared(at place) {
	building := at.building()
	info, err := os.Stat(at.file(markerName))
	if building || errors.Is(err, fs.ErrNotExist) { // one that was cut off before it was noted is like a build
		building = true
		info, err = os.Stat(at.env())
	}
	if err != nil {
		return // it has just gone, or is being replaced
	}
	switch unused := time.Since(info.ModTime()); {
	case building && unused > abandoned:
		_ = deep.RemoveAll(at.env())
	case building:
	case !s.uses.unused(at.digest, 0):
		if unused > renewed {
			s.touch(at)
		}
	case unused > sharedAge:
		s.remove(at, 0)
	}
}
