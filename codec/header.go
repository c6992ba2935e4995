package codec

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Header is the header of one message; nats.Header converts to it and back. Of
// a header with several values the first counts; where requests are read, those
// of ours must agree, except for Mesh-Require, of which all count.
type Header map[string][]string

// Names of headers. On the way in they are matched without regard to case.
const (
	HeaderRPCID          = "Mesh-Rpc-Id"
	HeaderTool           = "Mesh-Tool"    // the real name behind a hashed token
	HeaderSession        = "Mesh-Session" // likewise
	HeaderTimeout        = "Mesh-Timeout-Ms"
	HeaderDeadline       = "Mesh-Deadline"
	HeaderAgain          = "Mesh-Again"
	HeaderIdempotencyKey = "Mesh-Idempotency-Key"
	HeaderStream         = "Mesh-Stream"
	HeaderIsolation      = "Mesh-Isolation"
	HeaderRevision       = "Mesh-Revision"
	HeaderHops           = "Mesh-Hops"
	HeaderDepth          = "Mesh-Depth"
	HeaderParent         = "Mesh-Parent"
	HeaderKeepalive      = "Mesh-Keepalive"
	HeaderOutlive        = "Mesh-Outlive"   // the call goes on when its caller is gone
	HeaderProgress       = "Mesh-Progress"  // of a keepalive
	HeaderOwner          = "Mesh-Owner"     // of an install: the public key of its signer
	HeaderSignature      = "Mesh-Signature" // of the body, base64url without padding
	HeaderWantLoad       = "Mesh-Want-Load"
	HeaderWantProgress   = "Mesh-Want-Progress" // keepalives with progress come at once
	HeaderProto          = "Mesh-Proto"
	HeaderRequire        = "Mesh-Require"
	HeaderCredit         = "Mesh-Credit"
	HeaderNode           = "Mesh-Node"
	HeaderBoot           = "Mesh-Boot"
	HeaderLoad           = "Mesh-Load"
	HeaderErrorCode      = "Mesh-Error-Code"
	HeaderStarted        = "Mesh-Started"
	HeaderSeq            = "Mesh-Seq"
	HeaderChunk          = "Mesh-Chunk"
	HeaderCount          = "Mesh-Count"
	HeaderHigh           = "Mesh-High"
	HeaderEpoch          = "Mesh-Epoch"
	HeaderCache          = "Mesh-Cache"
	HeaderLanes          = "Mesh-Lanes" // the grants that calls above this one hold
	HeaderLaneWait       = "Mesh-Lane-Wait-Ms"
	HeaderFence          = "Mesh-Fence"
	HeaderAwaits         = "Mesh-Awaits"       // of a keepalive: the call waits at a router, for a node; see [Awaits]
	HeaderNodeWait       = "Mesh-Node-Wait-Ms" // of an answer: for how long it did
	HeaderWarning        = "Mesh-Warning"      // of an answer: the fault of the result
	HeaderRef            = "Mesh-Ref"          // the value's name in the object store, in place of a body
	HeaderDigest         = "Mesh-Digest"       // of the payload
	HeaderAcceptRef      = "Mesh-Accept-Ref"   // the caller takes a reference
	HeaderRead           = "Mesh-Read"         // the caller confirms large answers; of an answer: it is to be confirmed
	HeaderPayload        = "Mesh-Payload"      // the verb of a request about a payload
	HeaderSize           = "Mesh-Size"         // of all of it, in bytes

	HeaderContentType     = "Content-Type"
	HeaderContentEncoding = "Content-Encoding"
	HeaderAcceptEncoding  = "Accept-Encoding"
	HeaderTraceparent     = "traceparent"
	HeaderTracestate      = "tracestate"
	HeaderBaggage         = "baggage"

	HeaderServiceError     = "Nats-Service-Error"
	HeaderServiceErrorCode = "Nats-Service-Error-Code"
)

// canonical maps every header of ours, as it is and in lower case, to its name.
var canonical = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{
		HeaderRPCID, HeaderTool, HeaderSession, HeaderTimeout, HeaderDeadline, HeaderAgain, HeaderIdempotencyKey, HeaderStream,
		HeaderIsolation, HeaderRevision, HeaderHops, HeaderDepth, HeaderParent, HeaderKeepalive, HeaderOutlive, HeaderProgress, HeaderOwner, HeaderSignature, HeaderWantLoad, HeaderWantProgress,
		HeaderProto, HeaderRequire, HeaderCredit, HeaderNode, HeaderBoot, HeaderLoad, HeaderErrorCode, HeaderStarted,
		HeaderSeq, HeaderChunk, HeaderCount, HeaderHigh, HeaderEpoch, HeaderCache, HeaderLanes, HeaderLaneWait, HeaderAwaits, HeaderNodeWait, HeaderWarning, HeaderFence, HeaderRef, HeaderDigest, HeaderAcceptRef, HeaderRead, HeaderPayload, HeaderSize, HeaderContentType, HeaderContentEncoding,
		HeaderAcceptEncoding, HeaderTraceparent, HeaderTracestate, HeaderBaggage, HeaderServiceError, HeaderServiceErrorCode,
	} {
		m[name], m[strings.ToLower(name)] = name, name
	}
	return m
}()

// headerName returns the canonical name of a header in any case; "" for a header that is not ours.
func headerName(k string) string {
	if name, ok := canonical[k]; ok {
		return name
	}
	return canonical[strings.ToLower(k)]
}

var headers = sync.Pool{New: func() any { return make(Header, 8) }}

func newHeader() Header { return headers.Get().(Header) } //nolint:forcetypeassert // it holds nothing else

// Recycle takes a header of this package back, for another message: its own has
// been written, and it is not read again.
func Recycle(h Header) {
	if h != nil {
		clear(h)
		headers.Put(h)
	}
}

// Get returns the first value of a header; the case of its name is ignored.
func (h Header) Get(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	for k, v := range h {
		if len(v) > 0 && strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}

// Set replaces a header.
func (h Header) Set(name, value string) { h[name] = []string{value} }

// without returns a copy without some of our headers and without those of the broker. The broker
// acts upon Nats-Trace-Dest with the rights of the message's publisher, so a member of the mesh must
// not pass on that of a caller. The broker has not refused it to a caller that hides it behind a
// line that ends in LF alone.
func (h Header) without(names ...string) Header {
	out := make(Header, len(h)+len(names))
	for k, v := range h {
		if !slices.Contains(names, headerName(k)) && !begins(k, "nats-") {
			out[k] = v
		}
	}
	return out
}

// hasMesh reports whether any Mesh- header is there: such a request is plain.
func (h Header) hasMesh() bool {
	for k := range h {
		if begins(k, "mesh-") {
			return true
		}
	}
	return false
}

// begins reports whether a name is longer than a prefix and begins with it, in any case.
func begins(name, prefix string) bool {
	return len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// oneValue refuses a header of ours that came several times with different
// values, in one spelling or in several: callers would not know which one
// counts, and between spellings it would be chance.
func (h Header) oneValue(name string) error {
	var value string
	seen := false
	for k, values := range h {
		if !strings.EqualFold(k, name) {
			continue
		}
		for _, v := range values {
			if seen && v != value {
				return invalid("header %s is there twice, with different values", name)
			}
			value, seen = v, true
		}
	}
	return nil
}

// isList reports whether a header of ours may have several values, which count
// together.
func isList(name string) bool {
	return name == HeaderRequire || name == HeaderAcceptEncoding || name == HeaderTracestate || name == HeaderBaggage
}

// checkVersion checks the version and the required features of a request that is not a call.
// [Request] does so for calls, with their other headers.
func (h Header) checkVersion() error {
	var require []string
	for k, values := range h {
		if headerName(k) == HeaderRequire {
			require = append(require, values...)
		}
	}
	return cmp.Or(h.oneValue(HeaderProto), checkVersion(h.Get(HeaderProto), require))
}
