package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// keptTool is the Go tool that is called in "unary", with a cache_ttl.
const keptTool = "kept"

// offerKept has a host serve keptTool.
func offerKept(h *host.Host) error {
	_, err := h.Handle(keptTool, host.Func(refund), host.Annotate(tool.Annotations{CacheTTL: time.Hour}))
	return err
}

// cached calls keptTool with the same arguments over and over: of all but the first
// call the result is kept.
func (c *caller) cached(ctx context.Context, n int) (answer, error) {
	id := subjects.ToolID(toolOf(sideGo, keptTool))
	args := json.RawMessage(callArgs)
	call := func(want string, opts ...client.CallOption) error {
		r, err := c.mesh.Call(ctx, id, args, opts...)
		if err == nil && (string(r.Value) != callResult || r.Cache != want) {
			err = fmt.Errorf("a %s, and the result is %s", r.Cache, r.Value)
		}
		return err
	}
	if err := call("bypass", client.NoCache()); err != nil {
		return answer{}, err
	}
	return each(n, func() error { return call("hit") })
}

// measureCache compares calls whose result is kept with calls of the same tool that
// keeps none, and with those of the Python tool.
func (p *plan) measureCache(s *stage, r *result) error {
	sides := []request{{Do: "cached"}, {Do: "unary", Side: sideGo}, {Do: "unary", Side: sidePython}}
	got := map[string][]answer{}
	for round := range p.Rounds + 1 {
		for _, one := range sides {
			one.N = p.Calls
			a, err := s.caller.ask(one)
			if err != nil {
				return fmt.Errorf("cache: %s %s: %w", one.Do, one.Side, err)
			}
			if round > 0 { // each side is warm
				got[one.Do+one.Side] = append(got[one.Do+one.Side], a)
			}
		}
		sides = append(sides[1:], sides[0]) // nobody always goes first
	}
	r.compared("bulk: cache hit p50 / the Go tool's call", got["cached"], got["unary"+sideGo], p50, micros, &bound{must: 0.9, goal: 0.8})
	r.compared("bulk: cache hit p50 / the warm Python tool's call", got["cached"], got["unary"+sidePython], p50, micros, nil)
	return nil
}
