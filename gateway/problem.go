package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// codeUnauthenticated is the gateway's own code: the broker does not know the token, or has removed it.
const codeUnauthenticated toolmesh.Code = "unauthenticated"

// problem is the body of an answer that is a failure (RFC 9457).
type problem struct {
	Type      string           `json:"type"`
	Title     string           `json:"title"`
	Status    int              `json:"status"`
	Detail    string           `json:"detail,omitempty"`
	Code      toolmesh.Code    `json:"code,omitempty"`
	RPCID     subjects.RPCID   `json:"rpc_id,omitempty"`
	Started   toolmesh.Started `json:"started,omitzero"`
	Errors    any              `json:"errors,omitempty"`
	Nearest   any              `json:"nearest,omitempty"`
	Exception object           `json:"exception,omitempty"`
	// RetryAfterMS serves MCP clients, which get no header.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// problemOf is the problem of an error.
func problemOf(err error, rpc subjects.RPCID) problem {
	e := toolmesh.AsError(err)
	p := problem{
		Status: e.Code.Number(), Code: e.Code, Detail: e.Message, RPCID: rpc, Started: e.Started,
		Errors: e.Details["errors"], Nearest: e.Details["nearest"], RetryAfterMS: e.RetryAfter().Milliseconds(),
	}
	switch {
	case errors.Is(err, errMediaType):
		p.Status = http.StatusUnsupportedMediaType
	case e.Code == codeUnauthenticated:
		p.Status = http.StatusUnauthorized
	case e.Code == toolmesh.CodeToolError:
		p.Exception = object{"type": e.Type, "message": e.Message, "stacktrace": e.Stacktrace}
	}
	return p
}

// encode writes a problem and fills in its derived members.
func (p problem) encode() []byte {
	p.Type = cmp.Or(p.Type, "urn:toolmesh:error:"+string(p.Code))
	p.Title = cmp.Or(http.StatusText(p.Status), "Client Closed Request") // 499, which net/http has no text for
	body, err := tool.MarshalPlain(p)
	if err != nil { // a detail that is not JSON
		p.Errors, p.Nearest = nil, nil
		body, _ = tool.MarshalPlain(p)
	}
	return body
}

func writeProblem(w http.ResponseWriter, p problem) {
	h := w.Header()
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="toolmesh", error="invalid_token"`)
	case http.StatusTooManyRequests:
		h.Set("Retry-After", strconv.FormatInt(max(1, (p.RetryAfterMS+999)/1000), 10))
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(p.encode(), '\n'))
}

// fail answers a request with an error.
func fail(w http.ResponseWriter, err error, rpc subjects.RPCID) {
	writeProblem(w, problemOf(err, rpc))
}

// busy refuses a request that may be retried in a second.
func busy(format string, args ...any) *toolmesh.Error {
	return refused(toolmesh.CodeBusy, format, args...).WithDetail("retry_after_ms", int64(1000))
}

func refused(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}
