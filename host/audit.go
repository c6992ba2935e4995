package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// audit publishes what became of a call that this node ran, where the mesh keeps that. The
// caller has its answer already. Nothing is said of a call that another node ran: it says so
// itself.
func (r *runner) audit(c *inflight, record admit.Record) {
	if !r.opts.Audit || record.By != nil {
		return
	}
	subject, err := subjects.Event(subjects.EventCall, c.Request.Session)
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
	}
	body, err := json.Marshal(e)
	if err == nil {
		_ = r.bus.Conn().Publish(subject, body) // it is lost if the connection is: no call waits for its audit
	}
}
