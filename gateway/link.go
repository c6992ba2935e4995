package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// dials is the max number of connections made at once with keys that the mesh knows. Unknown keys have as many
	// of their own: made-up tokens delay no valid token.
	dials = 16
	// strangersMax is the max number of unknown keys that connect or wait to connect.
	strangersMax = 256
	// refusedFor is how long the broker must keep refusing a key before its link counts as revoked: a starting
	// broker may not know the sessions' keys yet.
	refusedFor = time.Second
	// keyEvery is how often a link checks that the mesh still knows its key, and that it is in use.
	keyEvery = time.Second
)

// errRevoked ends the requests of a token that the broker refuses.
var errRevoked = toolmesh.Errorf(codeUnauthenticated, "the token is not valid any more: its session has ended, or it was revoked").WithOrigin(toolmesh.OriginMesh)

// errStopping ends all requests when the gateway stops.
var errStopping = toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway stops: send the request to another gateway, or again in some seconds").WithOrigin(toolmesh.OriginMesh)

// errLearned ends the requests of a token that the gateway did not know when it connected.
var errLearned = toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway has just learned what the token may do: send the request again").WithOrigin(toolmesh.OriginMesh)

// link is the connection of one token, shared by all its requests.
type link struct {
	g       *Gateway
	digest  string             // of the token; empty without a token
	named   subjects.SessionID // from the request that made the link
	proof   nats.Option        // proves the token's key; nil without a token
	public  string             // the token's public key
	known   bool               // KeyOf knows the key, or there is no token
	key     registry.Key       // the token's restrictions, which the broker applies to calls, the gateway to lists and the rate; zero if unknown
	made    chan struct{}      // closed when the rest is set, or err
	session subjects.SessionID
	ofAdmin bool // the token is of no session
	err     error
	bus     *bus.Bus
	client  *client.Client
	ctx     context.Context // ends with the link
	end     context.CancelCauseFunc
	mcp     mcpLink

	rooms rooms

	// Guarded by links.mu.
	connected bool // counted in links.connected
	uses      int
	since     time.Time // when it was last used
}

// links are the connections of all tokens in use.
type links struct {
	g     *Gateway
	dials map[bool]chan struct{} // slots, by link.known

	mu        sync.Mutex
	all       map[string]*link         // by digest
	connected int                      // links with a connection
	strangers int                      // links of unknown keys that are not connected yet
	limits    map[string]*rate.Limiter // of tokens with a rate, by digest; they outlive the links
	closed    bool
}

func (ls *links) init(g *Gateway) {
	ls.g, ls.all, ls.limits = g, make(map[string]*link), make(map[string]*rate.Limiter)
	ls.dials = map[bool]chan struct{}{true: make(chan struct{}, dials), false: make(chan struct{}, dials)}
}

// token is the proof that a request carries.
type token struct {
	digest string
	seed   string
}

// tokenOf reads the bearer token of a request. The error is unauthenticated.
func tokenOf(r *http.Request) (token, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return token{}, nil
	}
	kind, seed, _ := strings.Cut(values[0], " ")
	seed = strings.TrimSpace(seed)
	if len(values) > 1 || !strings.EqualFold(kind, "Bearer") {
		return token{}, unauthenticated("write the header as Authorization: Bearer TOKEN, once")
	}
	prefix, raw, err := nkeys.DecodeSeed([]byte(seed))
	clear(raw)
	if err != nil || prefix != nkeys.PrefixByteUser {
		return token{}, unauthenticated("the token is not the seed of a key of the mesh: mesh session create NAME --key makes one")
	}
	sum := sha256.Sum256([]byte(seed))
	return token{hex.EncodeToString(sum[:]), seed}, nil
}

func unauthenticated(format string, args ...any) *toolmesh.Error {
	return refused(codeUnauthenticated, format, args...)
}

// open returns the link of a request's token, and its client in the request's session. Release the link. If another
// request's session made the link fail, open tries again with its own.
func (ls *links) open(r *http.Request) (*link, *client.Client, error) {
	t, err := tokenOf(r)
	named := subjects.SessionID(r.Header.Get("Mesh-Session"))
	for err == nil {
		l, failed := ls.join(r.Context(), t, named)
		switch {
		case failed == nil && named == "":
			return l, l.client, nil
		case failed == nil:
			return l, l.client.In(named), nil
		case l == nil || l.named == named || toolmesh.CodeOf(failed) != codeUnauthenticated:
			err = failed
		}
	}
	return nil, nil, err
}

// join is one attempt of open. With an error it returns the link that failed, if there was one.
func (ls *links) join(ctx context.Context, t token, named subjects.SessionID) (*link, error) {
	ls.mu.Lock()
	if ls.closed {
		ls.mu.Unlock()
		return nil, errStopping
	}
	l := ls.all[t.digest]
	if l == nil {
		var err error
		if l, err = ls.begin(t, named); err != nil {
			ls.mu.Unlock()
			return nil, err
		}
	}
	l.uses++
	ls.mu.Unlock()
	select {
	case <-l.made:
	case <-ctx.Done():
		ls.release(l)
		return nil, toolmesh.AsError(context.Cause(ctx))
	}
	if l.err != nil {
		ls.release(l)
		return l, l.err
	}
	return l, nil
}

// begin starts to make the link of a token; ls.mu is held.
func (ls *links) begin(t token, named subjects.SessionID) (*link, error) {
	l := &link{
		g: ls.g, digest: t.digest, named: named, known: t.seed == "", made: make(chan struct{}),
		rooms: newRooms(&ls.g.opts, false),
	}
	if t.seed != "" {
		pair, err := nkeys.FromSeed([]byte(t.seed))
		if err == nil {
			l.public, err = pair.PublicKey()
		}
		if err != nil {
			return nil, unauthenticated("the token is damaged")
		}
		l.proof = nats.Nkey(l.public, pair.Sign)
		if ls.g.opts.KeyOf != nil {
			l.key, l.known = ls.g.opts.KeyOf(l.public)
		}
	}
	if !l.known {
		if ls.strangers >= strangersMax {
			return nil, busy("the gateway is checking %d other new tokens: try again", strangersMax)
		}
		ls.strangers++
	}
	l.mcp.of = l
	l.ctx, l.end = context.WithCancelCause(context.Background())
	ls.all[t.digest] = l
	ls.g.wg.Go(func() { ls.make(l) })
	return l, nil
}

// evict drops the connected link that was unused for longest, and reports whether one existed; ls.mu is held.
func (ls *links) evict() bool {
	var oldest *link
	for _, l := range ls.all {
		if l.connected && l.uses == 0 && (oldest == nil || l.since.Before(oldest.since)) {
			oldest = l
		}
	}
	if oldest != nil {
		ls.drop(oldest, errStopping)
	}
	return oldest != nil
}

// drop forgets a link and closes its connection; ls.mu is held.
func (ls *links) drop(l *link, why error) {
	if ls.all[l.digest] == l {
		delete(ls.all, l.digest)
		if l.connected {
			ls.connected--
		}
	}
	l.end(why)
}

func (ls *links) release(l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.uses--
	l.since = time.Now()
}

func (ls *links) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for _, l := range ls.all {
		ls.drop(l, errStopping)
	}
}

// make connects a link and keeps it until it ends.
func (ls *links) make(l *link) {
	ls.dials[l.known] <- struct{}{}
	nc, err := l.connect()
	<-ls.dials[l.known]
	if nc != nil {
		defer nc.Close()
	}
	log := ls.g.log
	if l.digest != "" {
		log = log.With(slog.String("token", l.digest[:12]))
	}
	if err = ls.count(l, err); err == nil {
		l.bus, err = bus.New(nc, &bus.Options{Caller: l.session, Logger: log})
	}
	if err == nil {
		defer l.bus.Close()
		l.client, err = client.NewOn(l.bus, &client.Options{Session: l.session, Logger: log})
	}
	if err == nil {
		defer l.client.Close()
	} else {
		ls.mu.Lock()
		ls.drop(l, err) // the next request tries again
		ls.mu.Unlock()
	}
	l.err = err
	close(l.made)
	if err == nil {
		l.follow()
		l.mcp.close()
	}
}

// count counts a link as connected if err is nil and the gateway takes one more, and returns why it is not.
func (ls *links) count(l *link, err error) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !l.known {
		ls.strangers--
	}
	switch {
	case err != nil:
		return err
	case ls.all[l.digest] != l: // dropped meanwhile
		return errStopping
	case ls.connected >= ls.g.opts.MaxTokens && !ls.evict():
		return busy("%d tokens are in use at once, and the gateway takes no more", ls.g.opts.MaxTokens)
	}
	l.connected = true
	ls.connected++
	return nil
}

// follow returns when the link ends. It ends the link once it is idle, or once its key is unknown: a broker that is
// not the mesh's own lets a connection outlive its key. It also ends the link of a key that has become known and is
// restricted: the link does not know the restrictions.
func (l *link) follow() {
	ls := &l.g.links
	for wake.After(l.ctx, min(keyEvery, max(ls.g.opts.Idle, time.Millisecond))) {
		key, known := l.key, l.known
		if l.public != "" && ls.g.opts.KeyOf != nil {
			key, known = ls.g.opts.KeyOf(l.public)
		}
		if l.known && !known {
			l.revoke()
		}
		ls.mu.Lock()
		if !l.known && known && (key.Narrowed() || key.Calls > 0) {
			ls.drop(l, errLearned)
		}
		l.known = l.known || known // of the goroutine that makes the link, which is this one
		if l.uses == 0 && time.Since(l.since) > ls.g.opts.Idle {
			ls.drop(l, errStopping)
		}
		ls.mu.Unlock()
	}
}

// connect connects with a token and finds its session: the broker lets a key subscribe to the inbox of its own
// session only.
func (l *link) connect() (*nats.Conn, error) {
	if l.proof == nil {
		l.session = subjects.DefaultSession
		return l.dial(subjects.SharedInbox)
	}
	named, inboxes := l.key.Session, []string(nil)
	if !l.known {
		named, inboxes = l.named, []string{subjects.InboxAdmin, subjects.SharedInbox}
	}
	if own, err := subjects.InboxPrefix(named); named != "" && err == nil {
		inboxes = append(inboxes, own)
	}
	for _, inbox := range inboxes {
		nc, err := l.dial(subjects.KeyedInbox(inbox, access.Digest(l.public))) // the inbox names the key to audits
		if err != nil {
			return nil, err
		}
		if bus.MayHear(nc, nc.NewInbox()) {
			l.session, l.ofAdmin = named, inbox == subjects.InboxAdmin
			if l.ofAdmin || inbox == subjects.SharedInbox {
				l.session = subjects.DefaultSession
			}
			return nc, nil
		}
		nc.Close()
	}
	return nil, unauthenticated("the token's session is unknown here: name it in the header Mesh-Session")
}

// dial makes one connection. The error is unauthenticated where the broker refuses it.
func (l *link) dial(inbox string) (*nats.Conn, error) {
	var refusals struct {
		sync.Mutex
		since time.Time
	}
	options := []nats.Option{
		nats.CustomInboxPrefix(inbox),
		nats.ReconnectHandler(func(*nats.Conn) {
			refusals.Lock()
			defer refusals.Unlock()
			refusals.since = time.Time{}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			refusals.Lock()
			defer refusals.Unlock()
			switch {
			case !isRefusal(err): // a permission error is answered to its request
			case refusals.since.IsZero():
				refusals.since = time.Now()
			case time.Since(refusals.since) > refusedFor:
				l.revoke()
			}
		}),
	}
	if l.proof != nil {
		options = append(options, l.proof)
	}
	nc, err := l.g.opts.Dial(options...)
	switch {
	case isRefusal(err):
		return nil, unauthenticated("the mesh does not know the token: it was revoked, its session has ended, or it belongs to another mesh")
	case err != nil:
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway cannot connect to the mesh: %w", err).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	return nc, nil
}

func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked)
}

// revoke ends all requests of the token.
func (l *link) revoke() {
	ls := &l.g.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.g.log.Info("a token was revoked", slog.String("token", l.digest[:min(len(l.digest), 12)]))
	ls.drop(l, errRevoked)
}
