package zygote

import "encoding/json"

// Kind is how a tool is executed.
type Kind string

// The kinds of tools.
const (
	KindSync           Kind = "sync"
	KindAsync          Kind = "async"
	KindGenerator      Kind = "generator"
	KindAsyncGenerator Kind = "async_generator"
)

// Kinds are all kinds.
var Kinds = []Kind{KindSync, KindAsync, KindGenerator, KindAsyncGenerator}

// Streaming reports whether tools of the kind yield items.
func (k Kind) Streaming() bool { return k == KindGenerator || k == KindAsyncGenerator }

// Async reports whether tools of the kind are coroutines.
func (k Kind) Async() bool { return k == KindAsync || k == KindAsyncGenerator }

// Tool is one served function, described by its signature.
type Tool struct {
	Name         string          `json:"name"` // module.function
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema"` // nil if it is unknown
	Kind         Kind            `json:"kind"`
	// Positional are the parameters for positional arguments, in order.
	Positional []string `json:"positional"`
	// VarArgs is the parameter that takes further positional arguments; empty for none.
	VarArgs  string   `json:"varargs"`
	Warnings []string `json:"warnings"`
}

// Unavailable is a declared tool that is not served.
type Unavailable struct {
	Name   string `json:"name"`
	Reason string `json:"reason"` // for people
	// Documentation is the docstring in its source; empty if it was not read.
	Documentation string `json:"documentation,omitempty"`
}

// WithoutNulls removes output schemas that are JSON's null.
func WithoutNulls(tools []Tool) {
	for i := range tools {
		if string(tools[i].OutputSchema) == "null" {
			tools[i].OutputSchema = nil
		}
	}
}
