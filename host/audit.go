package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// askEvery is the interval of questions to the broker whether a session's events have a
	// subscriber.
	askEvery = 250 * time.Millisecond
	// audienceMax is how many sessions that is remembered of.
	audienceMax = 4096
	// eventArguments is how many bytes of arguments an event may have; it leaves out larger ones. All the calls that
	// are kept of one session have room in the stream so.
	eventArguments = 4 << 10
)

// Redactor is a [Handler] that knows secrets: Redact takes them out of a text.
type Redactor interface {
	Redact(text string) string
}

// audit publishes the event of a call that this node ran or refused. The caller has its answer already, and
// nothing waits for the event: it is lost if the connection is. Of a call that another node ran, that node
// says it.
func (r *runner) audit(c *inflight, record admit.Record) {
	if record.By != nil {
		return
	}
	reply, heard := r.audience.ask(c.Request.Session)
	if !heard {
		return
	}
	subject, err := subjects.CallEvents(c.Request.Session)
	if err != nil {
		return
	}
	took := time.Since(c.Start)
	e := codec.CallEvent{
		Time: r.bus.Time().Now.Add(-took).UTC(), Key: subjects.InboxKey(c.Reply), Session: c.Request.Session, Tool: c.Request.Tool,
		Revision: c.Identity.Revision, RPCID: c.Request.RPCID, Node: r.node, Status: "ok", DurationMS: float64(took.Microseconds()) / 1000,
	}
	if record.Err != nil {
		e.Status, e.Code = "error", record.Err.Code
	}
	args := c.call.Args
	if args == nil {
		args = c.Request.Args
	}
	if args != nil {
		sum := sha256.Sum256(args)
		e.ArgumentsDigest = hex.EncodeToString(sum[:])
		if r.opts.AuditArguments {
			e.Arguments = c.tool.redacted(args)
		}
	}
	if body, err := json.Marshal(e); err == nil {
		_ = r.bus.Conn().PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: body})
	}
}

// redacted returns arguments for an event: without the secrets that the tool's handler knows, and
// as a text if they are no JSON without them. It returns null for arguments that are too large,
// and without a tool, as their secrets are unknown.
func (t *served) redacted(args json.RawMessage) json.RawMessage {
	if t == nil || len(args) > eventArguments { // those of a call may have a gigabyte
		return nil
	}
	plain, err := tool.Canonical(args) // no escape hides a secret
	if err != nil || len(plain) > eventArguments {
		return nil
	}
	if t.secrets != nil {
		plain = json.RawMessage(t.secrets.Redact(string(plain)))
	}
	if !json.Valid(plain) {
		plain, _ = json.Marshal(string(plain))
	}
	return plain
}

// audience knows which sessions have subscribers of call events: other events are not made. From
// time to time an event is a probe; for a session without a subscriber the broker answers it.
type audience struct {
	bus *bus.Bus

	mu sync.Mutex // taken before that of a probe
	of map[subjects.SessionID]*bus.Probe
}

// ask reports whether an event of a session may have a subscriber, and the reply subject for the
// broker's answer if it has none; empty for most.
func (a *audience) ask(session subjects.SessionID) (reply string, heard bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	probe := a.of[session]
	if probe == nil {
		if len(a.of) >= audienceMax {
			for _, old := range a.of {
				old.Close()
			}
			clear(a.of)
		}
		probe = &bus.Probe{Every: askEvery}
		a.of[session] = probe
	}
	reply = probe.Next(a.bus)
	return reply, !probe.Gone(0)
}
