package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// registry asks the registry; without an answer it is unavailable.
func (c *Client) registry(ctx context.Context, session subjects.SessionID, verb string, question registry.Request, answer any) error {
	subject, err := subjects.Registry(session, verb)
	if err != nil {
		return callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	body, err := json.Marshal(question)
	if err != nil { // what a model wrote, or a schema, is not JSON
		return callerError(toolmesh.CodeInvalidRequest, "encode the request to the registry: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	m, err := c.askAny(ctx, subject, body)
	switch {
	case errors.Is(err, errNoResponders):
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry does not answer: no agent or router is in the mesh").
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	case errors.Is(err, context.DeadlineExceeded):
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry did not answer within %v", askWait).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	case err != nil:
		return asCall(ctx, err)
	}
	r := codec.ParseReply(codec.Header(m.Header), m.Data)
	if r.Kind == codec.ReplyError {
		return r.Err
	}
	if err := json.Unmarshal(r.Body, answer); err != nil {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the registry's answer cannot be read: %w", err).WithStarted(toolmesh.StartedNo)
	}
	return nil
}

// resolve asks for the full id of a tool for which no node answered, and for the reason.
func (c *Client) resolve(ctx context.Context, session subjects.SessionID, id subjects.ToolID) (full subjects.ToolID, reason string, err error) {
	var answer registry.ResolveAnswer
	if err := c.registry(ctx, session, registry.VerbResolve, registry.Request{Name: string(id)}, &answer); err != nil {
		e := toolmesh.AsError(err)
		if e.Started == toolmesh.StartedUnknown {
			e = e.WithStarted(toolmesh.StartedNo)
		}
		return "", "", e
	}
	return answer.ID, answer.Reason, nil
}

// Ask asks the registry one of its verbs (docs/protocol, section 2) about the client's session,
// and reads the answer into the value that answer points to. Without an answer it is unavailable.
func (c *Client) Ask(ctx context.Context, verb string, question registry.Request, answer any) error {
	return c.registry(ctx, c.session, verb, question, answer)
}

// Describe returns the registry's description of a tool: the JSON of
// `mesh info --json`.
func (c *Client) Describe(ctx context.Context, id subjects.ToolID) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.registry(ctx, c.session, registry.VerbDescribe, registry.Request{Tool: string(id)}, &answer)
	return answer, err
}

// List returns all tools that the client's session can see, in order of id.
func (c *Client) List(ctx context.Context) (all []registry.ListedTool, err error) {
	q := registry.Request{Limit: listPage}
	for {
		var page registry.ListAnswer
		if err := c.registry(ctx, c.session, registry.VerbList, q, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Tools...)
		if page.Next == "" || page.Next == q.After {
			return all, nil
		}
		q.After = page.Next
	}
}

// Search returns up to limit tools that the client's session can call, best match first, for a
// description of the task in free words. limit 0 is 10.
func (c *Client) Search(ctx context.Context, words string, limit int) ([]registry.FoundTool, error) {
	var answer registry.SearchAnswer
	err := c.registry(ctx, c.session, registry.VerbSearch, registry.Request{Query: words, Limit: limit}, &answer)
	return answer.Tools, err
}

// askAny asks a question that any node answers, and that may be asked twice: while no answer
// comes it asks other nodes as well, as the broker may choose a frozen one.
func (c *Client) askAny(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	var x bus.Exchange
	if err := x.Open(c.bus, 1); err != nil {
		return nil, err
	}
	defer x.Close()
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for n := 1; ; n = min(2*n, 8) { // the broker chooses at random
		for range n {
			if err := x.Send(&nats.Msg{Subject: subject, Data: body}, nil); err != nil {
				return nil, err
			}
		}
		select {
		case a := <-x.Arrived():
			if a.Err == nil && bus.NoResponders(a.Msg) {
				return nil, errNoResponders
			}
			return a.Msg, a.Err
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask sends one request and waits for one answer; errNoResponders if none can come.
func (c *Client) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	m, err := c.bus.Request(ctx, &nats.Msg{Subject: subject, Data: body})
	return m, noResponders(err)
}

// noResponders returns errNoResponders for the error of a request that met no subscription, else the error itself.
func noResponders(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return errNoResponders
	}
	return err
}
