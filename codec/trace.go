package codec

import (
	"regexp"
	"strings"
)

// Trace is the W3C trace context of a call, which is passed on.
type Trace struct {
	Traceparent string
	Tracestate  string // at most 512 bytes
	Baggage     string // at most 8192 bytes
}

// The lengths up to which W3C has each party pass a value on.
const (
	maxTracestate = 512
	maxBaggage    = 8192
)

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[0-9a-f-]{0,128})?$`)

// NewTrace reads a trace context by the names traceparent, tracestate and baggage. Invalid and longer values are
// left out: no call fails for them.
func NewTrace(values func(name string) []string) Trace {
	t := Trace{Traceparent: headerText(values(HeaderTraceparent), maxTracestate), Baggage: headerText(values(HeaderBaggage), maxBaggage)}
	if !traceparent.MatchString(t.Traceparent) {
		t.Traceparent = ""
		return t
	}
	t.Tracestate = headerText(values(HeaderTracestate), maxTracestate)
	return t
}

// headerText joins the values of a header; empty if they have more than most bytes, or one that is not printable.
func headerText(values []string, most int) string {
	text := strings.Join(values, ",")
	if len(text) > most || strings.IndexFunc(text, func(r rune) bool { return (r < ' ' && r != '\t') || r > '~' }) >= 0 {
		return ""
	}
	return text
}
