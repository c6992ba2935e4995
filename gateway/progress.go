package gateway

import (
	"context"
	"math"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/codec"
)

// reporter reports the progress of a call to an MCP client. A slow reader gets the latest report only, so no report
// blocks the link.
type reporter struct {
	ctx   context.Context
	to    *mcp.ServerSession
	token any // nil: the client asked for no progress, but may have asked for log messages
	tool  string
	told  sync.WaitGroup

	mu     sync.Mutex
	latest *codec.Progress // to be sent; nil for none
	over   bool

	telling sync.Mutex      // guards the rest
	said    *codec.Progress // sent last; keepalives repeat it
	at      float64         // sent last; it increases
	total   float64         // 1 once a fraction is known, else 0
}

func newReporter(ctx context.Context, q *mcp.CallToolRequest, tool string) *reporter {
	return &reporter{ctx: ctx, to: q.Session, token: q.Params.GetProgressToken(), tool: tool}
}

// report takes a report of the tool without blocking.
func (r *reporter) report(p codec.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	if r.latest == nil {
		r.told.Go(r.tellLatest)
	}
	r.latest = &p
}

func (r *reporter) tellLatest() {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.mu.Lock()
	p := *r.latest
	r.latest = nil
	r.mu.Unlock()
	r.tell(p)
}

// end waits until the last report is sent and ignores later ones.
func (r *reporter) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.told.Wait()
}

// tell sends a report as progress, and its text as a log message to a client that has set a level.
func (r *reporter) tell(p codec.Progress) {
	if r.said != nil && p.Same(*r.said) {
		return
	}
	r.said = &p
	if p.Text != "" {
		//lint:ignore SA1019 clients of earlier revisions get texts in this way only
		_ = r.to.Log(r.ctx, &mcp.LoggingMessageParams{Level: "info", Logger: r.tool, Data: p.Text})
	}
	if r.token == nil {
		return
	}
	next := r.at
	switch {
	case p.Fraction != nil && (r.total > 0 || r.at == 0):
		next, r.total = *p.Fraction, 1
	case r.total == 0:
		next++
	}
	if next <= r.at && r.at > 0 { // MCP requires increasing progress
		next = math.Nextafter(r.at, math.Inf(1))
	}
	r.at = next
	_ = r.to.NotifyProgress(r.ctx, &mcp.ProgressNotificationParams{ProgressToken: r.token, Progress: next, Total: r.total, Message: p.Text})
}
