package venv

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// uses counts the holders of each environment.
type uses struct {
	mu   sync.Mutex
	held map[string]int       // by digest
	left map[string]time.Time // when the last holder gave it up
}

func (u *uses) take(digest string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held[digest]++
}

func (u *uses) give(digest string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held[digest]--; u.held[digest] > 0 {
		return
	}
	delete(u.held, digest)
	u.left[digest] = time.Now()
}

// unused reports whether an environment has had no holder for so long.
func (u *uses) unused(digest string, age time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.held[digest] == 0 && time.Since(u.left[digest]) >= age
}

// Release gives up an environment that [Store.Environment] returned, once, when
// everything that runs in it has ended.
func (s *Store) Release(env *Env) { s.uses.give(env.Digest) }

// RemoveUnused removes the environments that had no holder for so long; those
// that were not asked for since the store was made, at once. What is removed is out
// of its place first: a process that is killed meanwhile leaves no half of one. What other
// stores share stays for as long as one of them has used it of late.
func (s *Store) RemoveUnused(age time.Duration) {
	for _, at := range s.places() {
		if at.folder == s.shared {
			s.tidyShared(at)
		} else if !at.building() && s.uses.unused(at.digest, age) {
			s.remove(at, age)
		}
	}
}

// building reports whether this is the folder of an environment that is being made.
func (p place) building() bool { return strings.HasPrefix(p.digest, "new-") }

func (s *Store) remove(at place, age time.Duration) {
	free, ok := s.keys.try(at.digest)
	if !ok {
		return // it is being made
	}
	beside, err := os.MkdirTemp(filepath.Dir(at.env()), "new-")
	if err == nil && s.uses.unused(at.digest, age) { // it is taken under its key alone
		if err = errors.Join(at.forget(), os.Rename(at.env(), filepath.Join(beside, at.digest))); err == nil {
			s.log.Info("environment removed: no index uses it", slog.String("digest", at.digest))
		}
	}
	free()
	if beside != "" {
		if gone := deep.RemoveAll(beside); err == nil {
			err = gone
		}
	}
	if err != nil {
		s.log.Warn("unused environment not removed", slog.String("digest", at.digest), slog.String("error", err.Error()))
	}
}
