package host

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// receive takes a request through the host, in this order:
//
//	subject     subjects.Parse      session and tool, and whether it is directed to this node
//	reply rule  bus.MayAnswer       a request that asks for no answer at an inbox gets none
//	parse       codec.ReadRequest   headers; the body stays as it came
//	find        routes.find         the tool, and the view's state of the session
//	check       intake.check         reasons against a start here and now
//	admit       admit.Table         a result that is kept, a new call with a slot or to be passed on, a repetition, or refused
//	run         Handler.ServeTool   in this goroutine; or [runner.passOn]
//	answer      reply.Replies
//
// No step leaves the process or waits, with two bounded exceptions that delay no other request.
// After a freeze or a cut, the inputs of find and check are refreshed first: see
// [intake.catchUp]. A call with a slot may have to look up its session before its handler runs:
// see [inflight.Epoch].
func (in *intake) receive(m *nats.Msg) {
	arrived := time.Now()
	s, err := subjects.Parse(m.Subject)
	if !in.bus.MayAnswer(m, s.Session) {
		in.counts.refusedReplies.Add(1)
		return
	}
	if s.Kind == subjects.KindBatch || s.Kind == subjects.KindNodeBatch {
		in.batches.Load().Serve(s, m) // it has subscribed them
		return
	}
	directed := s.Kind == subjects.KindNodeTool
	if directed {
		in.lastDirected.Store(bus.Mono(arrived))
	}
	req, bad := parse(&s, m, err)
	mine := in.catchUp(req)
	if !mine && directed {
		return // the other process has it, too, and answers
	}
	c, r := in.find(&s, req, m.Reply, arrived, bad)
	if bad != nil {
		in.replies.AnswerNow(&c.Reader, admit.Record{Err: bad})
		in.run.audit(c, admit.Record{Err: bad})
		return
	}
	c.directed, r.MayPass = directed, !directed && in.mayPass(req)
	if call := in.admit(c, r, in.check(c, mine, directed)); call != nil {
		in.run.run(call)
	}
}
