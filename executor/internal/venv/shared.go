package venv

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// Environments that several stores share in one folder, on machines that may differ. There are
// no locks: file systems shared between machines lock badly or not at all.
//
//   - An environment is complete, with its bytecode, before it is renamed into its place, and
//     nothing in it changes afterwards. Its records are written last. Two stores may build the
//     same one at once; the first is kept.
//   - Its name covers all of the interpreter and the C library that it depends on.
//   - The modification time of its marker is its last use: stores that use it renew it. No
//     store knows all uses, so only environments unused for long are removed.

const (
	// sharedAge is how long an unused shared environment stays.
	sharedAge = 30 * 24 * time.Hour
	// renewed is the age at which a note of use is renewed; a build's folder of age abandoned is
	// removed, as no build takes as long. Both exceed the difference between clocks of machines.
	renewed, abandoned = 24 * time.Hour, 24 * time.Hour
)

// touch records that a shared environment, if it exists, is in use.
func (s *Store) touch(at place) {
	now := time.Now()
	if err := os.Chtimes(at.file(markerName), now, now); err != nil && !os.IsNotExist(err) {
		s.log.Warn("the use of a shared environment could not be recorded: it is removed a month after its last record",
			slog.String("digest", at.digest), slog.String("error", err.Error()))
	}
}

// tidyShared records that a shared environment is in use here, or removes it if it was unused
// for long or its build was cut off.
func (s *Store) tidyShared(at place) {
	info, err := os.Stat(at.file(markerName))
	building := at.building() || errors.Is(err, fs.ErrNotExist) // without records, it was cut off
	if building {
		info, err = os.Stat(at.env())
	}
	if err != nil {
		return // just removed, or being replaced
	}
	switch unused := time.Since(info.ModTime()); {
	case building:
		if unused > abandoned {
			_ = deep.RemoveAll(at.env())
		}
	case !s.uses.unused(at.digest, 0):
		if unused > renewed {
			s.touch(at)
		}
	case unused > sharedAge:
		s.remove(at, 0)
	}
}
