package venv

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// uses counts the holders of each environment.
type uses struct {
	mu   sync.Mutex
	held map[string]int       // by digest
	left map[string]time.Time // when the last holder released it
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

// unused reports whether an environment had no holder for at least age.
func (u *uses) unused(digest string, age time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.held[digest] == 0 && time.Since(u.left[digest]) >= age
}

// Release releases an environment that [Store.Environment] returned. Call it once, after all
// processes in it have ended.
func (s *Store) Release(env *Env) { s.uses.give(env.Digest) }

// RemoveUnused removes environments without a holder for at least age, and at once those that
// were not requested since the store was made. An environment is renamed before it is removed,
// so that a killed process leaves no partial one. A shared environment stays while any store
// has used it recently.
func (s *Store) RemoveUnused(age time.Duration) {
	for _, at := range s.places() {
		if at.folder == s.shared {
			s.tidyShared(at)
		} else if !at.building() {
			s.remove(at, age)
		}
	}
}

// building reports whether p is the folder of an unfinished environment.
func (p place) building() bool { return strings.HasPrefix(p.digest, "new-") }

func (s *Store) remove(at place, age time.Duration) {
	if !s.uses.unused(at.digest, age) {
		return
	}
	free, err := s.keys.take(s.life, at.digest) // holders need the key, too
	if err != nil {
		return
	}
	var old string
	if s.uses.unused(at.digest, age) {
		if err = at.forget(); err == nil {
			old, err = at.moveAway()
		}
	}
	free()
	if err == nil && old != "" {
		s.log.Info("environment was removed: no index uses it", slog.String("digest", at.digest))
		err = deep.RemoveAll(old)
	}
	if err != nil {
		s.log.Warn("unused environment could not be removed", slog.String("digest", at.digest), slog.String("error", err.Error()))
	}
}
