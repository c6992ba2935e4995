package access

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/subjects"
)

// account is the server's account where its configuration names none.
const account = "$G"

// Issuer answers a server for the keys of sessions. Its methods may be called
// concurrently.
type Issuer struct {
	key    nkeys.KeyPair
	public string
}

// IssuerFile is where the key of a mesh's issuer is, the seed of a NATS account, mode
// 0600. A process that has it and a node's key can let any client in, also as an administrator.
func IssuerFile(dataDir string) string { return filepath.Join(Folder(dataDir), "issuer.nk") }

// OpenIssuer reads the issuer's key in a data folder, or makes it. Errors are those of
// [ReadIssuer].
func OpenIssuer(dataDir string) (*Issuer, error) {
	path := IssuerFile(dataDir)
	if err := ensure(path, nkeys.CreateAccount); err != nil {
		return nil, err
	}
	return ReadIssuer(path)
}

// ReadIssuer reads the issuer's key in a file. The error is like that of [Read].
func ReadIssuer(path string) (*Issuer, error) { return issuerOf(read(path, "SA", "account")) }

// NewIssuer makes an issuer with a key of its own, which lives as long as it does:
// the server's configuration names the issuer that it trusts.
func NewIssuer() (*Issuer, error) { return issuerOf(nkeys.CreateAccount()) }

func issuerOf(key nkeys.KeyPair, err error) (*Issuer, error) {
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	return &Issuer{key, public}, err
}

// SessionKey describes a key of a session.
type SessionKey struct {
	Session subjects.SessionID
	// Narrowed keys may call the tools alone that Exact means, globs with a pattern of
	// subjects each, and those of Tools.
	Narrowed bool
	Exact    subjects.Globs
	Tools    []subjects.ToolID
	// Until is when it ends by itself; zero for never.
	Until time.Time
	// For is how long a connection with it may last, in whole seconds, by the
	// server's clock; zero for as long as it likes.
	For time.Duration
}

// errUnknown is the answer to a client whose key belongs to no session, or to another client.
var errUnknown = errors.New("this key belongs to no session")

// Question is a server's question about a client that connects.
type Question struct {
	claims *jwt.AuthorizationRequestClaims
	// Key is the public key whose private half the client has proved to have; empty if it has not.
	Key string
	// Client is the server's number of the connection.
	Client uint64
}

// Read reads a server's question. The error is for an invalid one, or one for another issuer, whose
// answer the server would refuse.
func (i *Issuer) Read(request []byte) (*Question, error) {
	r, err := jwt.DecodeAuthorizationRequestClaims(string(request))
	if err != nil {
		return nil, fmt.Errorf("read the server's request: %w", err)
	}
	if r.Subject != i.public {
		return nil, fmt.Errorf("the NATS server trusts the issuer %s, and this process has the key of %s: its auth_callout and --auth-issuer are of two meshes, give both the same issuer", r.Subject, i.public)
	}
	q := &Question{claims: r, Client: r.ClientInformation.ID}
	public, err := nkeys.FromPublicKey(r.ConnectOptions.Nkey)
	if err != nil {
		return q, nil //nolint:nilerr // it has proved no key
	}
	signed, err := base64.RawURLEncoding.DecodeString(anyBase64.Replace(r.ConnectOptions.SignedNonce))
	if err == nil && public.Verify([]byte(r.ClientInformation.Nonce), signed) == nil {
		q.Key = r.ConnectOptions.Nkey
	}
	return q, nil
}

// Answer answers a question: with the rights of the key that the client has proved, or, if known is
// nil, with a refusal. admitted reports which.
func (i *Issuer) Answer(q *Question, known *SessionKey) (answer []byte, admitted bool, err error) {
	said := jwt.NewAuthorizationResponseClaims(q.claims.UserNkey)
	said.Audience = q.claims.Server.ID
	refusal := errUnknown
	if known != nil {
		said.Jwt, refusal = i.user(q.claims, known)
	}
	if refusal != nil {
		said.Error = refusal.Error()
	}
	text, err := said.Encode(i.key)
	if err != nil {
		return nil, false, fmt.Errorf("answer the server: %w", err)
	}
	return []byte(text), refusal == nil, nil
}

// anyBase64 makes one of the forms of base64 that clients write a signature in: nats-py
// sends standard base64 with padding, others base64url. The server takes both.
var anyBase64 = strings.NewReplacer("+", "-", "/", "_", "=", "")

func (i *Issuer) user(r *jwt.AuthorizationRequestClaims, known *SessionKey) (string, error) {
	rights, err := subjects.CallerRights(known.Session, false)
	if known.Narrowed {
		rights, err = subjects.NarrowedRights(known.Session, known.Exact, known.Tools)
	}
	if err != nil {
		return "", err
	}
	user := jwt.NewUserClaims(r.UserNkey)
	user.Name, user.Audience = string(known.Session), account
	user.Permissions = permissions(rights)
	if !known.Until.IsZero() {
		user.Expires = known.Until.Unix()
	}
	if asked := r.IssuedAt + int64(known.For/time.Second); known.For > 0 && (user.Expires == 0 || asked < user.Expires) {
		user.Expires = asked
	}
	return user.Encode(i.key)
}
