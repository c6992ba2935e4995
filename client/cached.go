package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh/internal/cache"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// cachedBytes bounds what one [CachedTool] keeps.
const cachedBytes = 64_000_000

// CachedTool calls one tool and keeps its results in this process, for callers that
// want to be spared even the way to the node, and for tools that declare no cache_ttl.
// It does not hear of an upgrade: what it keeps it serves until the time is over. Its
// methods may be called concurrently; equal calls at once are several calls.
type CachedTool struct {
	client  *Client
	id      subjects.ToolID
	results *cache.Tool
}

// Cached returns a caller of a tool that keeps each result for ttl: those of the last
// entries calls that differ, 64 MB at most.
func (c *Client) Cached(id subjects.ToolID, ttl time.Duration, entries int) *CachedTool {
	all := cache.New(cachedBytes, entries, func(int) bool { return true })
	return &CachedTool{client: c, id: id, results: all.Offer(ttl)}
}

// Call is [Client.Call], and returns the value that is kept of an earlier one that had
// the same session and equal arguments, and asked for the same revision and isolation.
// Then Cache is "hit", and no node is named. [NoCache] passes by what is kept here and at
// the node. Errors are not kept.
func (t *CachedTool) Call(ctx context.Context, args any, opts ...CallOption) (*Result, error) {
	s, err := t.client.settings(ctx, opts, "rpc_")
	if err != nil {
		return nil, err
	}
	body, err := encodeArgs(args)
	if err != nil {
		return nil, err
	}
	key, ok := s.cacheKey(body)
	if !ok {
		return t.client.Call(ctx, t.id, json.RawMessage(body), opts...) // it says what is wrong with them
	}
	if !s.noCache {
		if value, ok := t.results.Get(key); ok {
			return &Result{RPCID: s.rpc, Value: bytes.Clone(value), Cache: "hit"}, nil
		}
	}
	var result *Result
	_, err = t.results.Fresh(ctx, key, func(ctx context.Context) (value json.RawMessage, err error) {
		if result, err = t.client.Call(ctx, t.id, json.RawMessage(body), opts...); err == nil {
			value = result.Value
		}
		return value, err
	})
	return result, err
}

// cacheKey is what calls with these settings have in common that have one result.
func (s *settings) cacheKey(body []byte) (key cache.Key, ok bool) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	text, err := tool.Canonical(body)
	if err != nil {
		return key, false
	}
	for _, more := range []string{s.revision, string(s.isolation)} {
		text = append(append(text, 0), more...) // JSON has no such byte
	}
	return cache.Key{Session: s.session, Args: sha256.Sum256(text)}, true
}
