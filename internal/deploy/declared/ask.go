package declared

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
)

// silence is how long an agent may say nothing before it is looked for.
const silence = 5 * time.Second

// install has an index installed, by a node that it is for.
func (k *Keeper) install(ctx context.Context, r deploy.Request) error {
	err := k.ask(ctx, "", "install", r)
	if nodes := deploy.Elsewhere(err); len(nodes) > 0 {
		err = k.ask(ctx, nodes[rand.IntN(len(nodes))], "install", r)
	}
	return err
}

// ask sends an administrative request, to any agent or to a node, and waits until it is
// done. node_lost says that the node which worked on it is gone.
func (k *Keeper) ask(ctx context.Context, node subjects.NodeID, verb string, body any) error {
	subject, err := subjects.Admin(verb)
	if node != "" {
		subject, err = subjects.NodeAdmin(node, verb)
	}
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInternal, "write the request: %w", err)
	}
	type arrival struct {
		msg *nats.Msg
		err error
	}
	arrivals := make(chan arrival, 1<<14) // far more than an answer has
	inbox, err := k.bus.Open(func(m *nats.Msg, err error) {
		select {
		case arrivals <- arrival{m, err}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer inbox.Close()
	if err := inbox.Send(&nats.Msg{Subject: subject, Data: data, Header: nats.Header{codec.HeaderKeepalive: {"1"}}}); err != nil {
		return err
	}
	var failed error
	for {
		select {
		case a := <-arrivals:
			if a.err != nil {
				return a.err
			}
			if id := codec.Header(a.msg.Header).Get(codec.HeaderNode); id != "" {
				node = codec.ParseNameHeader[subjects.NodeID](id)
			}
			switch {
			case bus.NoResponders(a.msg):
				return toolmesh.Errorf(toolmesh.CodeUnavailable, "no agent takes the request").WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
			case a.msg.Header.Get(codec.HeaderKeepalive) != "":
			case len(a.msg.Data) == 0:
				return failed
			default:
				var line struct {
					Error *toolmesh.Error `json:"error"`
				}
				if json.Unmarshal(a.msg.Data, &line) == nil && line.Error != nil {
					failed = line.Error
				}
			}
		case <-time.After(silence):
			switch {
			case len(arrivals) > 0 || k.view.Alive(node):
			case node == "":
				return toolmesh.Errorf(toolmesh.CodeUnavailable, "no agent has answered in %v", silence).WithOrigin(toolmesh.OriginCaller)
			default:
				return toolmesh.Errorf(toolmesh.CodeNodeLost, "node %q is lost, which was at work on it", node).WithOrigin(toolmesh.OriginCaller)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
