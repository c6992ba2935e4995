package gateway

import (
	"context"
	"math"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/codec"
)

// reporter reports the progress of a call to an MCP client.
type reporter struct {
	ctx   context.Context
	to    *mcp.ServerSession
	token any // nil: the client asked for no progress, but may have asked for log messages
	tool  string
	said  *codec.Progress // sent last; keepalives repeat it
	at    float64         // sent last; it increases
	total float64         // 1 once a fraction is known, else 0
}

// reportTo returns report, which takes the reports of a tool and does not block, and end, which waits until the last
// one is sent: later ones are ignored. A slow reader gets the latest report only.
func reportTo(ctx context.Context, q *mcp.CallToolRequest, tool string) (report func(codec.Progress), end func()) {
	r := &reporter{ctx: ctx, to: q.Session, token: q.Params.GetProgressToken(), tool: tool}
	latest, over := make(chan codec.Progress, 1), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for open := true; open; {
			select {
			case p := <-latest:
				r.tell(p)
			case <-over:
				open = false
			}
		}
		select {
		case p := <-latest:
			r.tell(p)
		default:
		}
	})
	report = func(p codec.Progress) {
		for {
			select {
			case latest <- p:
				return
			case <-latest:
			}
		}
	}
	return report, func() { close(over); telling.Wait() }
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
