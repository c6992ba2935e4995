package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// agentPatience is how long an agent may be silent before it has named itself.
	agentPatience = 5 * time.Second
	// maxUnread is far more messages than an answer has.
	maxUnread = 1 << 14
)

// Ask makes an administrative request, of a node or, where that is empty, of any agent. It
// yields the lines of the answer; an error is the last thing it yields. A line that has an
// error is that error. node_lost says that the agent which works on the request is gone, or
// that none has said in 5 s that it does: whether the request went through is unknown. The
// owner's key signs the request; nil for none.
func Ask(ctx context.Context, b *bus.Bus, node subjects.NodeID, verb string, body any, owner nkeys.KeyPair) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		m, err := request(node, verb, body, owner)
		x := bus.Exchange{What: "it went through", Patience: agentPatience}
		if err == nil {
			err = x.Open(b, maxUnread)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		defer x.Close()
		for err, lines := x.Send(m, nil), 0; ; lines++ {
			var line json.RawMessage
			if err == nil {
				line, err = next(ctx, b, &x)
			}
			if err == nil && line == nil && lines == 0 {
				err = toolmesh.Errorf(toolmesh.CodeProtocolError, "the agent answered nothing")
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if line == nil || !yield(line, nil) {
				return
			}
		}
	}
}

// Install is [Ask] for an install. Where the agent that was asked says that the index is for other
// nodes, it asks one of these.
func Install(ctx context.Context, b *bus.Bus, r Request, owner nkeys.KeyPair) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for node, again := subjects.NodeID(""), true; again; {
			again = false
			for line, err := range Ask(ctx, b, node, "install", r, owner) {
				if nodes := elsewhere(err); node == "" && len(nodes) > 0 {
					node, again = nodes[rand.IntN(len(nodes))], true //nolint:gosec // any of them
					break
				}
				if !yield(line, err) {
					return
				}
			}
		}
	}
}

func request(node subjects.NodeID, verb string, body any, owner nkeys.KeyPair) (*nats.Msg, error) {
	to := subjects.Subject{Kind: subjects.KindAdmin, Verb: verb}
	if node != "" {
		to.Kind, to.Node = subjects.KindNodeAdmin, node
	}
	subject, err := to.Build()
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	data, _ := json.Marshal(body) // of texts and flags
	// Asked for keepalives, the agent says at once which node it is.
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{codec.HeaderKeepalive: {"1"}}}
	if owner != nil {
		signed, err := Sign(owner, data)
		if err != nil {
			return nil, err
		}
		maps.Copy(m.Header, signed)
	}
	return m, nil
}

// next returns the next line, nil after the last one.
func next(ctx context.Context, b *bus.Bus, x *bus.Exchange) (json.RawMessage, error) {
	m, err := x.Next(ctx)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case bus.NoResponders(m):
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "no agent of the mesh at %s takes the request: none is connected, or not the one that is named", connect.Redact(b.Conn().ConnectedUrl())).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	case len(m.Data) == 0:
		return nil, nil
	}
	var line struct {
		Error *toolmesh.Error `json:"error"`
	}
	if json.Unmarshal(m.Data, &line) == nil && line.Error != nil {
		return nil, line.Error
	}
	h := codec.Header(m.Header)
	x.Answered(codec.ParseNameHeader[subjects.NodeID](h.Get(codec.HeaderNode)), subjects.BootID(h.Get(codec.HeaderBoot)))
	return m.Data, nil
}
