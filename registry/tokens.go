package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// TokenRecord is a further key of a session, which may be narrowed to some of its tools,
// MESH_SESSIONS/<session>.<id>.
type TokenRecord struct {
	ID      string             `json:"id"`
	Session subjects.SessionID `json:"session"`
	// Epoch is the session's, if it was created: the token ends with it.
	Epoch string `json:"epoch,omitempty"`
	// Key is the public half of the token's NATS key. The token itself is the seed, which is
	// kept nowhere.
	Key string `json:"key"`
	// Tools are those that the token may call; none: all of the session's.
	Tools subjects.Globs `json:"tools,omitempty"`
	// ReadOnly leaves it the tools that declare read_only.
	ReadOnly bool `json:"read_only,omitempty"`
	// Rate is how many calls a gateway takes with the token, as [ParseRate] reads it; empty:
	// any number.
	Rate    string    `json:"rate,omitempty"`
	Created time.Time `json:"created"`
	// Expires is when it ends by itself; zero: never.
	Expires time.Time `json:"expires,omitzero"`
}

// ParseRate reads a number of calls in a second, a minute or an hour, such as 10/s; 0 for an empty
// text.
func ParseRate(text string) (calls int, in time.Duration, err error) {
	if text == "" {
		return 0, 0, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 31)
	in = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	if err != nil || n == 0 || in == 0 {
		return 0, 0, fmt.Errorf("the rate %q cannot be read: write a whole number of calls in a second, a minute or an hour, such as 10/s, 100/m or 1000/h", text)
	}
	return int(n), in, nil
}

// Key describes a public NATS key: a session's own, or a token's.
type Key struct {
	Session subjects.SessionID
	// Token is the id of the token; empty for the session's own key, which no other field
	// but Until limits.
	Token    string
	Tools    subjects.Globs
	ReadOnly bool
	// Calls is how many calls a gateway takes with it at once, and in the time In; 0: any number.
	Calls int
	In    time.Duration
	// Until is when it ends by itself; zero: never.
	Until time.Time
}

// Narrowed reports whether the key may call some tools alone.
func (k Key) Narrowed() bool { return len(k.Tools) > 0 || k.ReadOnly }

// Key looks a public key up; false for one that belongs to no session, was revoked, has expired, or
// whose session has ended.
func (v *View) Key(public string) (Key, bool) {
	if public == "" {
		return Key{}, false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	name, ok := v.keys[public]
	if !ok {
		return Key{}, false
	}
	if r, ok := v.tokens[name]; ok {
		k := Key{Session: r.Session, Token: r.ID, Tools: r.Tools, ReadOnly: r.ReadOnly, Until: r.Expires}
		var err error
		k.Calls, k.In, err = ParseRate(r.Rate)
		return k, err == nil && r.Epoch == v.sessions[canonical(r.Session)].Epoch
	}
	id, err := subjects.DecodeToken(name)
	r, ok := v.sessions[subjects.SessionID(id)]
	k := Key{Session: r.ID}
	if r.TTL > 0 {
		k.Until = r.Created.Add(r.TTL)
	}
	return k, ok && err == nil
}

// Tokens returns the tokens that were made and not revoked, by session and id.
func (v *View) Tokens() []TokenRecord {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.SortedFunc(maps.Values(v.tokens), func(a, b TokenRecord) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.ID, b.ID))
	})
}

// applyToken takes a change of a token's record. The lock is held.
func (v *View) applyToken(c change) {
	session, id, err := subjects.ParseTokenKey(c.key)
	if err != nil {
		return
	}
	delete(v.keys, v.tokens[c.key].Key)
	delete(v.tokens, c.key)
	if !c.gone {
		var r TokenRecord
		if json.Unmarshal(c.data, &r) != nil {
			v.log.Warn("the record of a token is not readable: the token is refused")
		} else {
			r.Session, r.ID = trusted(r.Session, session), id
			v.tokens[c.key] = r
			v.keys[r.Key] = c.key
		}
	}
	v.touched(ChangedSessions)
}

// CreateToken writes the record of a new token. It ends with its session, if that was
// created, and when it expires: both times of r are of the NATS server's clock, which ends it.
func (s *Store) CreateToken(ctx context.Context, r TokenRecord) error {
	var ttl time.Duration
	if !r.Expires.IsZero() {
		ttl = r.Expires.Sub(r.Created)
	}
	key := tokenKey(r.Session, r.ID)
	key.err = cmp.Or(key.err, mayHaveKeys(r.Session))
	return s.create(ctx, "token", r.ID, key, r, ttl)
}

// DeleteToken revokes a token; one that does not exist is no error.
func (s *Store) DeleteToken(ctx context.Context, session subjects.SessionID, id string) error {
	return s.delete(ctx, tokenKey(session, id))
}

func tokenKey(session subjects.SessionID, id string) recordKey {
	key, err := subjects.TokenKey(session, id)
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "token %q of session %q: %w", id, session, err)
	}
	return recordKey{store.Key{Bucket: subjects.BucketSessions, Name: key}, err}
}
