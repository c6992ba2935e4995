// Package render shows a tool to a model: it turns a [tool.Descriptor] into the
// function declaration that a provider takes (OpenAI chat and responses,
// Anthropic, Gemini, MCP), and what the model answers back into the tool's
// arguments.
//
// Each provider takes another subset of JSON Schema and refuses a whole request
// for one word outside it. What fits is passed on as the author wrote it; what
// does not is written in another way that can be mapped back, or left out, and
// then [Rendered.Notes] says so. The mesh checks arguments against the author's
// own schema before a call in any case: a rendering may allow more, and never
// hides what the tool takes without a note.
//
// [Tool] renders for a [Format]; [Arguments] turns what the model wrote, an object or JSON in a
// text, into arguments that fit the schema, and lists what it changed for people. Over the wire
// the same is done by the registry's verbs render and arguments. Errors are invalid_request for an
// unknown format, and invalid_arguments for arguments that are no JSON object. Every function may
// be called concurrently.
//
// It must never call a provider, run a tool, or guess which tool a name means:
// package tool has them ([tool.ProviderName]). Read on: docs/tools.md, "Names", and docs/mcp.md.
package render
