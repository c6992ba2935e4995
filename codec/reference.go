package codec

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Ref names a payload: a value in the object store that is too large for a message.
type Ref struct {
	Name string // <session>.<anything>
	// Digest of the stored bytes, as an object store writes it: SHA-256=<base64url>.
	Digest string
	Size   int64 // in bytes, where it is known; it does not travel
}

// DigestPrefix precedes a digest in base64url.
const DigestPrefix = "SHA-256="

// DigestText renders a SHA-256.
func DigestText(sum []byte) string {
	return DigestPrefix + base64.URLEncoding.EncodeToString(sum)
}

// put adds the reference to a message's headers.
func (r *Ref) put(h Header) {
	h[HeaderRef], h[HeaderDigest] = []string{r.Name}, []string{r.Digest}
}

// Payload returns the id of the payload that the reference names in a session. The error is
// permission_denied for a payload of another session, and invalid_request for a malformed digest.
func (r *Ref) Payload(session subjects.SessionID) (subjects.PayloadID, error) {
	owner, id, err := subjects.ParsePayloadName(r.Name)
	if err != nil || !subjects.SameName(owner, session) {
		return "", toolmesh.Errorf(toolmesh.CodePermissionDenied, "the payload %.80q is not of session %q: its name begins with the session and a dot", r.Name, session)
	}
	text, ok := strings.CutPrefix(r.Digest, DigestPrefix)
	if sum, err := base64.URLEncoding.DecodeString(text); !ok || err != nil || len(sum) != 32 {
		return "", invalid("header %s is %.80q: it is %s and the digest in base64url", HeaderDigest, r.Digest, DigestPrefix)
	}
	return id, nil
}

// refer makes a reference the arguments of a request.
func (r *Request) refer(ref Ref, encoding string) error {
	if _, err := ref.Payload(r.Session); err != nil {
		return err
	}
	switch {
	case len(r.body) > 0:
		return invalid("header %s replaces the body, and the message has a body: leave one of them out", HeaderRef)
	case r.packed || encoding != "" && encoding != "identity":
		return invalid("header %s names JSON, as it is: it goes with no other content type or encoding", HeaderRef)
	}
	r.Ref, r.body = &ref, []byte(ref.Digest)
	return nil
}

// Referred returns the reference in the headers of a request that is not parsed yet; nil without
// one.
func (h Header) Referred() *Ref {
	if len(h) == 0 {
		return nil
	}
	name := h.Get(HeaderRef)
	if name == "" {
		return nil
	}
	return &Ref{Name: name, Digest: h.Get(HeaderDigest)}
}

// Resolved returns the headers of a request without the reference, once that was read.
func (h Header) Resolved() Header { return h.without(HeaderRef, HeaderDigest) }

// PayloadVerb is the verb of a request about a payload.
type PayloadVerb string

// The verbs of payloads.
const (
	// PayloadPut begins to store one: its pieces follow to the node that answers.
	PayloadPut PayloadVerb = "put"
	// PayloadPiece is one of them, PayloadEnd the end of them.
	PayloadPiece PayloadVerb = "piece"
	PayloadEnd   PayloadVerb = "end"
	// PayloadGet reads some of one.
	PayloadGet PayloadVerb = "get"
	// PayloadDelete removes one that is no longer needed.
	PayloadDelete PayloadVerb = "delete"
)

// PayloadPutRequest is the body of a put.
type PayloadPutRequest struct {
	Size int64 `json:"size"`
}

// ParsePayloadPut reads a put.
func ParsePayloadPut(h Header, body []byte) (PayloadPutRequest, *toolmesh.Error) {
	var wire struct {
		Size wholeNumber `json:"size"`
	}
	if err := ParseBody(h, body, &wire); err != nil {
		return PayloadPutRequest{}, err
	}
	if wire.Size.n < 0 || wire.Size.text == "" {
		return PayloadPutRequest{}, refused(invalid("size is %s: it is how many bytes follow", wire.Size))
	}
	return PayloadPutRequest{Size: wire.Size.n}, nil
}

// PayloadTaker is the answer to a put: which node takes the pieces.
type PayloadTaker struct {
	Node subjects.NodeID `json:"node"`
}

// ParsePayloadTaker reads it. The error is protocol_error.
func ParsePayloadTaker(body []byte) (PayloadTaker, error) {
	var p PayloadTaker
	if json.Unmarshal(body, &p) != nil || p.Node == "" {
		return p, toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer to a put cannot be read")
	}
	return p, nil
}
