package callout_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/callout"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// sessions opens the registry's sessions.
func sessions(t *testing.T, nc *nats.Conn) *registry.Store {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	if err := store.Of(b).EnsureBucket(t.Context(), subjects.BucketSessions); err != nil {
		t.Fatal(err)
	}
	return testmesh.Store(t, b)
}

// answer admits the keys of sessions at a broker, as one of its nodes.
func answer(t *testing.T, k *meshtest.Keyed, issuer *access.Issuer, o callout.Options) {
	t.Helper()
	keys, err := callout.Serve(t.Context(), k.As(t, access.Node), issuer, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(keys.Stop)
}

// serveWait serves slow.wait, which ends when it is released.
func serveWait(t *testing.T, k *meshtest.Keyed) (release func()) {
	t.Helper()
	h := testmesh.Host(t, k.As(t, access.Node), &host.Options{Index: "slow"})
	released := make(chan struct{})
	if _, err := h.Handle("wait", host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		select {
		case <-released:
			return sink.Send(ctx, json.RawMessage("1"))
		case <-ctx.Done():
			return ctx.Err()
		}
	})); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	return func() { close(released) }
}

// A connection with a session's key ends by itself on a server elsewhere: its client
// comes back while the session goes on, with its calls, and does not come in afterwards.
func TestConnectionsAreRenewed(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	store := sessions(t, k.As(t, access.Node))
	issuer, err := access.ReadIssuer(access.IssuerFile(k.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // one of them answers
		answer(t, k, issuer, callout.Options{Renew: 2 * time.Second})
	}
	file := t.TempDir() + "/mine.nk"
	public, err := access.CreateSessionKey(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateSession(t.Context(), registry.SessionRecord{ID: "mine", Epoch: "1", Created: time.Now(), Key: public}); err != nil {
		t.Fatal(err)
	}
	key, err := access.Option(file)
	if err != nil {
		t.Fatal(err)
	}
	var nc *nats.Conn
	meshtest.Until(t, "the key is admitted", func() bool {
		nc, err = nats.Connect(k.URL, append(bus.ConnectOptions(nil), key, nats.CustomInboxPrefix("_INBOX_mine"))...)
		return err == nil
	})
	defer nc.Close()
	result := make(chan error, 1)
	release := serveWait(t, k)
	caller := testmesh.Client(t, nc, &client.Options{Session: "mine"})
	go func() {
		_, err := caller.Call(t.Context(), "slow.wait", nil, client.WithTimeout(time.Minute))
		result <- err
	}()
	meshtest.Until(t, "the client has come back twice", func() bool { return nc.Stats().Reconnects >= 2 && nc.IsConnected() })
	release()
	if err := <-result; err != nil {
		t.Errorf("a call that goes on meanwhile: %v", err)
	}
	if err := store.DeleteSession(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "it is refused", func() bool { return errors.Is(nc.LastError(), nats.ErrAuthorization) })
	if nc.IsConnected() {
		t.Error("it is connected")
	}
}

// Each server of a cluster asks, whichever the one that answers is connected to.
func TestKeysOfSessionsInACluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, err := access.OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := access.OpenIssuer(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := keys.Config(issuer, access.Node)
	if err != nil {
		t.Fatal(err)
	}
	servers := meshtest.Cluster(t, 3, meshtest.Config(config))
	node, err := access.Option(access.File(dir, access.Node))
	if err != nil {
		t.Fatal(err)
	}
	nc := servers[0].Connect(t, node, nats.CustomInboxPrefix(access.Node.Inbox()))
	store := sessions(t, nc)
	answering, err := callout.Serve(t.Context(), nc, issuer, callout.Options{Renew: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(answering.Stop)
	file := dir + "/mine.nk"
	public, err := access.CreateSessionKey(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateSession(t.Context(), registry.SessionRecord{ID: "mine", Epoch: "1", Created: time.Now(), Key: public}); err != nil {
		t.Fatal(err)
	}
	key, err := access.Option(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range servers {
		meshtest.Until(t, fmt.Sprintf("server %d admits the key", i), func() bool {
			nc, err := nats.Connect(s.URL, key)
			if err == nil {
				nc.Close()
			}
			return err == nil
		})
	}
}

// A process that may not subscribe to the server's questions, or has the key of an issuer that the
// server does not trust, reports it.
func TestProcessesThatCannotAnswerReportIt(t *testing.T) {
	t.Parallel()
	k, other := meshtest.WithKeys(t), meshtest.WithKeys(t)
	sessions(t, k.As(t, access.Node))
	issuer, err := access.ReadIssuer(access.IssuerFile(other.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	keys, err := access.OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := keys.Config(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	node, err := access.Option(access.File(dir, access.Node))
	if err != nil {
		t.Fatal(err)
	}
	unasked := meshtest.Broker(t, meshtest.Config(config)).Connect(t, node, nats.CustomInboxPrefix(access.Node.Inbox()))
	for who, nc := range map[string]*nats.Conn{"a caller": k.Connect(t), "a node where nobody asks": unasked} {
		_, err = callout.Serve(t.Context(), nc, issuer, callout.Options{})
		if toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied || !strings.Contains(err.Error(), "it may not subscribe $SYS.REQ.USER.AUTH mesh") {
			t.Errorf("%s: %v", who, err)
		}
	}
	logs := meshtest.CaptureLogs(t)
	answer(t, k, issuer, callout.Options{Logger: logs.Logger})
	stranger, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := stranger.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	// Serve returns before the server knows its subscription: a login may come too early to be asked about.
	meshtest.Until(t, "the log says that the keys are of two meshes", func() bool {
		if nc, err := nats.Connect(k.URL, nats.Nkey(public, stranger.Sign)); err == nil {
			nc.Close()
			t.Fatal("an unknown key is admitted")
		}
		return logs.Count("are of two meshes") > 0
	})
}

func seedOf(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return lines[len(lines)-1]
}

// question is that of a server with a clock that is a day behind.
func question(t *testing.T, issuer string, written *base64.Encoding) (request []byte, asked int64) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := nkeys.CreateServer()
	must(err)
	user, err := nkeys.CreateUser()
	must(err)
	public, err := user.PublicKey()
	must(err)
	signed, err := user.Sign([]byte("nonce"))
	must(err)
	claims := jwt.NewAuthorizationRequestClaims(issuer)
	claims.UserNkey, claims.ConnectOptions.Nkey, claims.ClientInformation.Nonce = public, public, "nonce"
	claims.ConnectOptions.SignedNonce = written.EncodeToString(signed)
	token, err := claims.Encode(server)
	must(err)
	// The library sets the current time in its signature.
	parts := strings.Split(token, ".")
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	must(err)
	asked = claims.IssuedAt - 24*60*60
	body = bytes.Replace(body, fmt.Append(nil, claims.IssuedAt), fmt.Append(nil, asked), 1)
	parts[1] = base64.RawURLEncoding.EncodeToString(body)
	signed, err = server.Sign([]byte(parts[0] + "." + parts[1]))
	must(err)
	parts[2] = base64.RawURLEncoding.EncodeToString(signed)
	return []byte(strings.Join(parts, ".")), asked
}

// Libraries of NATS write the signature that proves a key in several forms.
func TestSignaturesInEveryForm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(access.Folder(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	issuer, err := access.OpenIssuer(dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.FromSeed(seedOf(t, access.IssuerFile(dir)))
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for form, written := range map[string]*base64.Encoding{"raw URL": base64.RawURLEncoding, "URL": base64.URLEncoding, "raw": base64.RawStdEncoding, "standard, as nats-py": base64.StdEncoding} {
		for range 20 { // not each has a character that differs
			request, _ := question(t, public, written)
			q, err := issuer.Read(request)
			if err != nil || q.Key == "" {
				t.Fatalf("%s: %+v %v", form, q, err)
			}
			answer, _, err := issuer.Answer(q, &access.SessionKey{Session: "mine"})
			if err != nil {
				t.Fatal(err)
			}
			if said, err := jwt.DecodeAuthorizationResponseClaims(string(answer)); err != nil || said.Error != "" || said.Jwt == "" {
				t.Fatalf("%s: %v %+v", form, err, said)
			}
		}
	}
}

// A key file has the form that NATS libraries read: the seed, to the last byte. Files with a
// comment, as they were, and from editors of Windows are read.
func TestFilesOfKeysAreSeeds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mine.nk")
	public, err := access.CreateSessionKey(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := nkeys.FromSeed(data); err != nil {
		t.Errorf("%q: %v", data, err)
	} else if got, err := key.PublicKey(); err != nil || got != public {
		t.Errorf("the key of %q, %v, want that of %q", got, err, public)
	}
	for _, text := range []string{"# the key of a mesh's \"session mine\": keep it secret\n%s\n", "\ufeff%s\r\n"} {
		if err := os.WriteFile(file, fmt.Appendf(nil, text, data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := access.Read(file); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The max age of a connection is by the clock of the server that asks, not by this process's.
func TestRenewalIsByTheServersClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(access.Folder(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	issuer, err := access.OpenIssuer(dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.FromSeed(seedOf(t, access.IssuerFile(dir)))
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		key  access.SessionKey
		want func(asked int64) int64
	}{
		"no end":         {access.SessionKey{}, func(int64) int64 { return 0 }},
		"renewed":        {access.SessionKey{For: time.Minute}, func(asked int64) int64 { return asked + 60 }},
		"ends before it": {access.SessionKey{For: time.Minute, Until: time.Unix(1e9, 0)}, func(int64) int64 { return 1e9 }},
		"ends later":     {access.SessionKey{For: time.Minute, Until: time.Unix(1e11, 0)}, func(asked int64) int64 { return asked + 60 }},
	} {
		request, asked := question(t, public, base64.RawURLEncoding)
		c.key.Session = "mine"
		q, err := issuer.Read(request)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		text, _, err := issuer.Answer(q, &c.key)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		said, err := jwt.DecodeAuthorizationResponseClaims(string(text))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		user, err := jwt.DecodeUserClaims(said.Jwt)
		if err != nil || user.Expires != c.want(asked) {
			t.Errorf("%s: asked at %d it ends at %v, %v", what, asked, user, err)
		}
	}
}

// slowServer is a server that takes its time to say whether a client is there.
type slowServer struct {
	asked, answer chan struct{}
}

func (s *slowServer) Connected(uint64) bool {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-s.answer
	return true
}

func (*slowServer) Disconnect(uint64) {}

// A login does not wait for the check of other sessions, nor for the logins of another one.
func TestLoginsDoNotWaitForUpkeep(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	store := sessions(t, k.As(t, access.Node))
	issuer, err := access.ReadIssuer(access.IssuerFile(k.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	server := &slowServer{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	looks, slow := make(chan struct{}, 100), make(chan struct{})
	answer(t, k, issuer, callout.Options{Server: server, Seen: func() *registry.View {
		looks <- struct{}{}
		<-slow
		return nil
	}})
	t.Cleanup(func() { close(server.answer); close(slow) })
	login := func(id subjects.SessionID) {
		t.Helper()
		file := t.TempDir() + "/key.nk"
		public, err := access.CreateSessionKey(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.CreateSession(t.Context(), registry.SessionRecord{ID: id, Epoch: "1", Created: time.Now(), Key: public}); err != nil {
			t.Fatal(err)
		}
		key, err := access.Option(file)
		if err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the key of "+string(id)+" is admitted", func() bool {
			nc, err := nats.Connect(k.URL, append(bus.ConnectOptions(nil), key, nats.CustomInboxPrefix("_INBOX_"+string(id)))...)
			if err != nil {
				return false
			}
			t.Cleanup(nc.Close)
			return true
		})
	}
	login("first")
	<-server.asked
	login("second")

	// The rights of this token are listed, which takes time.
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateToken(t.Context(), registry.TokenRecord{ID: "tok_1", Session: "first", Epoch: "1", Key: public, Tools: subjects.Globs{"lab.a*"}, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	var connecting sync.WaitGroup
	t.Cleanup(connecting.Wait)
	for range 64 {
		connecting.Go(func() {
			if nc, err := nats.Connect(k.URL, nats.Nkey(public, pair.Sign)); err == nil {
				nc.Close()
				t.Error("a token without rights is admitted")
			}
		})
	}
	for range 8 {
		<-looks
	}
	login("third")
}
