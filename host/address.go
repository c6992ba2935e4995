package host

import (
	"sync"

	"github.com/toolmesh/toolmesh/subjects"
)

// maxAddresses bounds what is remembered; beyond it everything is forgotten.
const maxAddresses = 4096

// addresses remembers the subjects that requests came on: they repeat with every
// call of a tool in a session. What is kept of a call shares their names, and
// does not hold on to its message.
type addresses struct {
	mu    sync.RWMutex
	known map[string]*subjects.Subject
}

// parse is [subjects.Parse]; its result must not be changed. Nothing is
// remembered of what is refused.
func (a *addresses) parse(subject string) (*subjects.Subject, error) {
	a.mu.RLock()
	s := a.known[subject]
	a.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	parsed, err := subjects.Parse(subject)
	if err != nil {
		return &parsed, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxAddresses || a.known == nil {
		a.known = make(map[string]*subjects.Subject)
	}
	a.known[subject] = &parsed
	return &parsed, nil
}
