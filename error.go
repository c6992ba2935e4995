package toolmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Code names one kind of failure: one of those that [Codes] returns, which are
// those of docs/protocol, section 4. A code of a later version, received from a
// peer, becomes the nearest of them by its number, with its name in
// Details["code"]. A code says where to act, not what happened inside: a failing
// tool ([CodeToolError]) is never reported with a code of the mesh, nor the other
// way round.
type Code string

// The codes.
const (
	// CodeInvalidRequest: the request itself is malformed or contradicts itself. It started
	// nothing; of one that repeats a call, Started says whether that call had begun.
	CodeInvalidRequest Code = "invalid_request"
	// CodePermissionDenied: the broker or a policy forbids it.
	CodePermissionDenied Code = "permission_denied"
	// CodeToolNotFound: no index or session offers a tool of that id.
	CodeToolNotFound Code = "tool_not_found"
	// CodeSessionNotFound: the session does not exist and the policy is strict, or it has ended.
	CodeSessionNotFound Code = "session_not_found"
	// CodeNotFound: the call, task, file, node or index that the request names does not exist, or no longer.
	CodeNotFound Code = "not_found"
	// CodeStreamExpired: the chunks asked for are no longer kept; details.first_seq is the oldest that is.
	CodeStreamExpired Code = "stream_expired"
	// CodePayloadTooLarge: a request, reply or chunk is over the size limit.
	CodePayloadTooLarge Code = "payload_too_large"
	// CodeInvalidArguments: the arguments do not fit the tool's schema; details.errors says where.
	CodeInvalidArguments Code = "invalid_arguments"
	// CodeInstallFailed: an index could not be installed.
	CodeInstallFailed Code = "install_failed"
	// CodeBusy: every slot of the node is taken, or another limit in the details. Never started.
	CodeBusy Code = "busy"
	// CodeCancelled: the caller gave up, or the call's session has ended.
	CodeCancelled Code = "cancelled"
	// CodeToolError: the tool's own code failed.
	CodeToolError Code = "tool_error"
	// CodeResultNotSerializable: the tool returned a value that JSON cannot carry.
	CodeResultNotSerializable Code = "result_not_serializable"
	// CodeInternal: a fault of the mesh itself.
	CodeInternal Code = "internal"
	// CodeProtocolError: a peer broke the protocol or requires an unknown feature.
	CodeProtocolError Code = "protocol_error"
	// CodeWorkerCrashed: the process that ran the tool died.
	CodeWorkerCrashed Code = "worker_crashed"
	// CodeNodeLost: the node that ran the call is gone.
	CodeNodeLost Code = "node_lost"
	// CodeUnavailable: no node can serve it now; trying again later may help.
	CodeUnavailable Code = "unavailable"
	// CodeDeadlineExceeded: the call's time is up.
	CodeDeadlineExceeded Code = "deadline_exceeded"
	// CodeWorkerOutOfMemory: the tool took more memory than it may.
	CodeWorkerOutOfMemory Code = "worker_out_of_memory"
)

// codeNumbers is the one table of codes; Codes, Number and Valid read it.
var codeNumbers = map[Code]int{
	CodeInvalidRequest: 400, CodePermissionDenied: 403,
	CodeToolNotFound: 404, CodeSessionNotFound: 404, CodeNotFound: 404,
	CodeStreamExpired: 410, CodePayloadTooLarge: 413,
	CodeInvalidArguments: 422, CodeInstallFailed: 424, CodeBusy: 429,
	CodeCancelled: 499, CodeToolError: 500, CodeResultNotSerializable: 500,
	CodeInternal: 500, CodeProtocolError: 502, CodeWorkerCrashed: 502,
	CodeNodeLost: 502, CodeUnavailable: 503, CodeDeadlineExceeded: 504,
	CodeWorkerOutOfMemory: 507,
}

// Number is the HTTP-like number that travels as Nats-Service-Error-Code; 500
// for a code that is not among [Codes].
func (c Code) Number() int {
	if n, ok := codeNumbers[c]; ok {
		return n
	}
	return 500
}

// Valid reports whether c is one of [Codes].
func (c Code) Valid() bool { _, ok := codeNumbers[c]; return ok }

// Codes returns all codes of this version, in no particular order.
func Codes() []Code {
	codes := make([]Code, 0, len(codeNumbers))
	for c := range codeNumbers {
		codes = append(codes, c)
	}
	return codes
}

// Origin says which part reported a failure.
type Origin string

// The parts that can report a failure.
const (
	OriginCaller Origin = "caller"
	OriginMesh   Origin = "mesh"
	OriginAgent  Origin = "agent"
	OriginWorker Origin = "worker"
	OriginTool   Origin = "tool"
)

// Started says whether the tool's code had begun when a call failed. Only
// StartedNo permits sending a call again that is not idempotent.
type Started int8

// Whether a failed call has started. In JSON: absent, false, true.
const (
	StartedUnknown Started = iota
	StartedNo
	StartedYes
)

// IsZero makes encoding/json's omitzero leave StartedUnknown out.
func (s Started) IsZero() bool { return s == StartedUnknown }

// MarshalJSON renders true, false or null.
func (s Started) MarshalJSON() ([]byte, error) {
	switch s {
	case StartedNo:
		return []byte("false"), nil
	case StartedYes:
		return []byte("true"), nil
	default:
		return []byte("null"), nil
	}
}

// UnmarshalJSON reads true, false or null.
func (s *Started) UnmarshalJSON(data []byte) error {
	var b *bool
	if err := json.Unmarshal(data, &b); err != nil {
		return err
	}
	switch {
	case b == nil:
		*s = StartedUnknown
	case *b:
		*s = StartedYes
	default:
		*s = StartedNo
	}
	return nil
}

// Error is the one error type of the mesh, on the wire and in Go. Its JSON form
// is the error object of docs/protocol, section 4. Treat a received Error as
// immutable: it may be shared by several callers. The With methods return copies.
type Error struct {
	Code       Code           `json:"code"`
	Message    string         `json:"message"`
	Details    map[string]any `json:"details,omitempty"`
	Origin     Origin         `json:"origin,omitempty"`
	Retryable  bool           `json:"retryable"`
	Started    Started        `json:"started,omitzero"`
	Type       string         `json:"type,omitempty"`       // class of the tool's exception, e.g. ValueError
	Stacktrace string         `json:"stacktrace,omitempty"` // of the tool, frames relative to its index

	cause error
}

// Errorf makes an Error of the given code. A %w operand becomes its cause. Busy and unavailable are
// retryable, other codes only after [Error.WithRetryable].
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{
		Code: code, Message: err.Error(), cause: errors.Unwrap(err),
		Retryable: code == CodeBusy || code == CodeUnavailable,
	}
}

// Error returns "code: message"; of a tool_error with a type "code: type: message".
func (e *Error) Error() string {
	if e.Type != "" && e.Code == CodeToolError {
		return string(e.Code) + ": " + e.Type + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Message
}

// Unwrap returns the cause, which never travels.
func (e *Error) Unwrap() error { return e.cause }

// WithOrigin returns a copy that was reported by origin.
func (e *Error) WithOrigin(origin Origin) *Error { c := *e; c.Origin = origin; return &c }

// WithStarted returns a copy that knows whether the tool's code began.
func (e *Error) WithStarted(started Started) *Error { c := *e; c.Started = started; return &c }

// WithRetryable returns a copy that says whether trying again may help.
func (e *Error) WithRetryable(retryable bool) *Error { c := *e; c.Retryable = retryable; return &c }

// WithDetail returns a copy with one more detail. value must marshal to JSON.
func (e *Error) WithDetail(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}

// LimitSlots is the limit in a busy error's details if a node has no room for the call: unlike
// other reasons to be busy, this one passes by itself.
const LimitSlots = "slots"

// RetryAfter is how long the one that refused a call says to wait before it is sent
// again: details.retry_after_ms, an hour at most. 0: nothing is said.
func (e *Error) RetryAfter() time.Duration {
	var ms float64
	switch v := e.Details["retry_after_ms"].(type) {
	case float64:
		ms = v
	case int64:
		ms = float64(v)
	}
	return time.Duration(min(max(ms, 0), 3.6e6) * float64(time.Millisecond))
}

// CodeOf returns the code of the first [Error] in err's chain. A nil error has
// the empty code, a context's error has [CodeCancelled] or
// [CodeDeadlineExceeded], every other error is [CodeInternal].
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// AsError returns the first [Error] in err's chain, or an Error made from err by
// the rules of [CodeOf]; nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeCancelled, Message: "the call was cancelled", cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeDeadlineExceeded, Message: "the call's time is up", cause: err}
	default:
		return &Error{Code: CodeInternal, Message: err.Error(), cause: err}
	}
}
