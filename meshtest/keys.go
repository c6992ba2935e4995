package meshtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/callout"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// Epoch is that of sessions which [Keyed.AsSession] creates.
const Epoch = "1"

// Keyed is a broker that admits users, each with the rights of its role.
type Keyed struct {
	*Server
	// DataDir is where the keys are; empty where users have JWTs.
	DataDir string
	// Seen returns the view of the process that admits sessions' keys: keys that are narrowed to some tools need it.
	// nil: no view.
	Seen func() *registry.View

	as      func(t testing.TB, role access.Role) []nats.Option
	session func(t testing.TB, id subjects.SessionID) []nats.Option
}

// WithKeys starts a broker with keys, where clients without a key are callers, by the
// configuration of mesh auth template --nats-conf.
func WithKeys(t testing.TB, options ...Option) *Keyed {
	t.Helper()
	dir := t.TempDir()
	keys, err := access.OpenKeys(dir)
	must(t, err, "make keys")
	issuer, err := access.OpenIssuer(dir)
	must(t, err, "make the issuer's key")
	config, err := keys.Config(issuer, access.Node)
	must(t, err, "configure keys")
	k := &Keyed{Server: Broker(t, append([]Option{Config(config)}, options...)...), DataDir: dir}
	k.as = func(t testing.TB, role access.Role) []nats.Option {
		t.Helper()
		return []nats.Option{keyOption(t, access.File(dir, role))}
	}
	k.session = sessionKeys(k, issuer)
	return k
}

// sessionKeys makes keys of sessions, once for each, and answers the broker's questions about them.
func sessionKeys(k *Keyed, issuer *access.Issuer) func(testing.TB, subjects.SessionID) []nats.Option {
	var mu sync.Mutex
	var records *registry.Store
	files := make(map[subjects.SessionID]string)
	return func(t testing.TB, id subjects.SessionID) []nats.Option {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		must := func(err error) {
			t.Helper()
			must(t, err, "make a key of session "+string(id))
		}
		if records == nil {
			nc := k.As(t, access.Node)
			b, err := bus.New(nc, nil)
			must(err)
			t.Cleanup(b.Close)
			must(store.Of(b).EnsureBucket(t.Context(), subjects.BucketSessions))
			answering, err := callout.Serve(t.Context(), nc, issuer, callout.Options{Renew: time.Hour, Seen: k.Seen})
			must(err)
			t.Cleanup(answering.Stop)
			records, err = registry.NewStore(b)
			must(err)
		}
		file, made := files[id]
		if !made {
			file = filepath.Join(k.DataDir, fmt.Sprintf("session%d.nk", len(files)))
			public, err := access.CreateSessionKey(file)
			must(err)
			must(records.CreateSession(t.Context(), registry.SessionRecord{ID: id, Epoch: Epoch, Created: time.Now(), Key: public}))
			files[id] = file
			Until(t, "the session's key is admitted", func() bool {
				nc, err := nats.Connect(k.URL, keyOption(t, file))
				if err == nil {
					nc.Close()
				}
				return err == nil
			})
		}
		return []nats.Option{keyOption(t, file)}
	}
}

func keyOption(t testing.TB, file string) nats.Option {
	t.Helper()
	key, err := access.Option(file)
	must(t, err, "read the key")
	return key
}

// must ends the test where something could not be done.
func must(t testing.TB, err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// WithJWTs starts a broker in operator mode, with the users of mesh auth template --jwt.
func WithJWTs(t testing.TB, options ...Option) *Keyed {
	t.Helper()
	o := InOperatorMode(t, options...)
	as := func(t testing.TB, session subjects.SessionID, role access.Role) []nats.Option {
		t.Helper()
		rights, err := access.Template(session)
		must(t, err, "find the rights of session "+string(session))
		file := filepath.Join(t.TempDir(), "user.creds")
		must(t, os.WriteFile(file, o.Creds(t, rights[string(role)]), 0o600), "write credentials")
		return []nats.Option{nats.UserCredentials(file)}
	}
	return &Keyed{
		Server: o.Server,
		as: func(t testing.TB, role access.Role) []nats.Option {
			t.Helper()
			return as(t, subjects.DefaultSession, role)
		},
		session: func(t testing.TB, id subjects.SessionID) []nats.Option { t.Helper(); return as(t, id, access.Caller) },
	}
}

// Role is that of a user: "caller", "node" or "admin".
type Role = access.Role

// As connects as a role, with the inbox that it may use.
func (k *Keyed) As(t testing.TB, role Role, options ...nats.Option) *nats.Conn {
	t.Helper()
	return k.Connect(t, append(append(k.as(t, role), nats.CustomInboxPrefix(role.Inbox())), options...)...)
}

// AsSession connects as a caller of one session: with its own key, for which the
// session is created the first time, or with a JWT.
func (k *Keyed) AsSession(t testing.TB, id subjects.SessionID, options ...nats.Option) *nats.Conn {
	t.Helper()
	inbox, err := subjects.InboxPrefix(id)
	must(t, err, "name the inbox of session "+string(id))
	return k.Connect(t, append(append(k.session(t, id), nats.CustomInboxPrefix(inbox)), options...)...)
}

// Operated is a broker in operator mode with one account next to its own.
type Operated struct {
	*Server
	account nkeys.KeyPair
}

// InOperatorMode starts a broker in operator mode, with users by JWTs of its account.
func InOperatorMode(t testing.TB, options ...Option) *Operated {
	t.Helper()
	must := func(err error) {
		t.Helper()
		must(t, err, "configure operator mode")
	}
	pair := func(kind nkeys.PrefixByte) (nkeys.KeyPair, string) {
		t.Helper()
		k, err := nkeys.CreatePair(kind)
		must(err)
		public, err := k.PublicKey()
		must(err)
		return k, public
	}
	operator, operatorKey := pair(nkeys.PrefixByteOperator)
	account, accountKey := pair(nkeys.PrefixByteAccount)
	_, systemKey := pair(nkeys.PrefixByteAccount)
	o := jwt.NewOperatorClaims(operatorKey)
	o.SystemAccount = systemKey
	operatorJWT, err := o.Encode(operator)
	must(err)
	a := jwt.NewAccountClaims(accountKey)
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accountJWT, err := a.Encode(operator)
	must(err)
	systemJWT, err := jwt.NewAccountClaims(systemKey).Encode(operator)
	must(err)
	quoted, err := json.Marshal(operatorJWT)
	must(err)
	config := Config(fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %q, %s: %q }\n",
		quoted, systemKey, accountKey, accountJWT, systemKey, systemJWT))
	return &Operated{Broker(t, append([]Option{config}, options...)...), account}
}

// Creds makes a user of the account: the content of its credentials file.
func (o *Operated) Creds(t testing.TB, may jwt.Permissions) []byte {
	t.Helper()
	user, err := nkeys.CreateUser()
	must(t, err, "make a user")
	key, err := user.PublicKey()
	must(t, err, "make a user")
	claims := jwt.NewUserClaims(key)
	claims.Permissions = may
	token, err := claims.Encode(o.account)
	must(t, err, "make a user")
	seed, err := user.Seed()
	must(t, err, "make a user")
	creds, err := jwt.FormatUserConfig(token, seed)
	must(t, err, "make a user")
	return creds
}
