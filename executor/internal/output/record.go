package output

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

// Sink receives output and items of a call before its end. It may be nil for a
// call that does not stream.
type Sink interface {
	// Item receives one item of a stream, in order. It may block: the generator
	// pauses then. An error cancels the call, and the call returns it.
	Item(ctx context.Context, data json.RawMessage) error
	// Log receives a piece of output. It is called concurrently with Item, must
	// not block, and is not called after the call has returned.
	Log(record Record)
}

// Stream names the source of a [Record].
type Stream string

// The sources of records.
const (
	StreamStdout Stream = "stdout"
	StreamStderr Stream = "stderr"
	StreamLog    Stream = "log"
	// StreamProgress: the message is the tool's text, and the fields have the fraction
	// from 0 to 1, if the tool set one.
	StreamProgress Stream = "progress"
)

// Record is a piece of a call's output: printed text, without the last line break, or one
// record of Python's logging.
type Record struct {
	Time    time.Time
	Stream  Stream
	Level   slog.Level      // of StreamLog
	Logger  string          // of StreamLog
	Message string          // at most about 8 KB
	Fields  json.RawMessage // of StreamLog and StreamProgress: extra fields, an object; may be nil
}

// levels has the names that Python alone gives, and takes their meaning from offsets, which slog alone knows.
var levels = strings.NewReplacer("warning", "warn", "critical", "error", "+", " ", "-", " ")

// RecordOf makes a record of a LOG frame.
func RecordOf(flags uint8, body []byte) Record {
	r := Record{Time: time.Now()}
	switch flags {
	case frame.LogRecord, frame.LogProgress:
		r.Stream = StreamLog
		if flags == frame.LogProgress {
			r.Stream = StreamProgress
		}
		var m struct {
			Level   string          `json:"level"`
			Logger  string          `json:"logger"`
			Message string          `json:"message"`
			Fields  json.RawMessage `json:"fields"`
		}
		if json.Unmarshal(body, &m) != nil {
			r.Message = string(body)
			return r
		}
		r.Logger, r.Message, r.Fields = m.Logger, m.Message, m.Fields
		_ = r.Level.UnmarshalText([]byte(levels.Replace(m.Level))) // info for a name that it does not know
	default:
		r.Stream, r.Message = StreamStderr, strings.TrimSuffix(string(body), "\n")
		if flags == frame.LogStdout {
			r.Stream = StreamStdout
		}
	}
	return r
}
